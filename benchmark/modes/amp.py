"""What matrix products in bfloat16 gain, on a CPU that has it."""

from modes import versus


def run(name, options):
    nets = options.net or ("wide", "lenet", "resnet20")
    bfloat16, float32 = ("bfloat16", {"amp": "bfloat16"}), ("float32", {})
    return versus.run(nets, options, bfloat16, float32, "bfloat16, of the speed in float32")
