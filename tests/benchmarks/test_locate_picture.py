"""The picture of the guide to `locate` is what its command draws."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from benchmarks.locate_picture import FAULTY, draw, measure
from lockstep_doctor.locate import LOOSE

PICTURE = Path(__file__).parents[2] / "docs/pictures/locate.svg"


def test_the_error_is_at_one_cut_with_intervention_and_stays_without() -> None:
    cuts, alone, replayed = measure()
    faulty = [str(cut) for cut, error in zip(cuts, replayed, strict=True) if error > LOOSE]
    assert faulty == [f"layers.{FAULTY}.attn"]
    start = replayed.index(max(replayed))
    assert min(alone[start:]) > 100 * LOOSE > max(alone[:start])


def test_the_shipped_picture_has_the_words_of_the_page() -> None:
    words = "".join(ElementTree.parse(PICTURE).getroot().itertext())
    assert all(word in words for word in ("example", "reference", "intervention", "tolerance", "error at the output"))
    assert draw(*measure()).startswith("<svg")
