"""The doctor: compares training and inference on a model, and locates disagreements.

The modules of this folder and `dumps` locate the operation at which two programs diverge; they
import torch, numpy and safetensors, and nothing of `lockstep`. The other folders are the commands
of `lockstep doctor`: its table, its backends, and taps on learners and samplers.
"""
