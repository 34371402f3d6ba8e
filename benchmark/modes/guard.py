"""What looking for NaN in each step costs."""

from modes import versus


def run(name, options):
    nets = options.net or ("lenet", "mlp")
    guarded, without = ("guarded", {}), ("no guard", {"guard": False})
    return versus.run(nets, options, guarded, without, "guarded, of the speed without")
