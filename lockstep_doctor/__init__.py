"""The doctor: do training and inference agree on a model and, if not, where do they part?

The modules of this folder, `column` and `dumps` locate the operation at which any two programs
diverge; they import torch, numpy and safetensors, and nothing of `lockstep`. The other folders and
`api` are the commands of `lockstep doctor`: its table, its backends, and taps on learners and
samplers.
"""
