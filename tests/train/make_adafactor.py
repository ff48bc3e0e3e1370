#!/usr/bin/env python3
"""Makes tests/train/fixtures/adafactor.json: steps of transformers' Adafactor in fp64, of a matrix and of a vector.

    python make_adafactor.py     needs torch and transformers 5; CPU alone
"""
import json
import pathlib

import torch
from transformers.optimization import Adafactor

CASES = {
    "the_papers": dict(scale_parameter=True, relative_step=True),
    "of_a_fixed_rate": dict(lr=0.02, scale_parameter=False, relative_step=False, weight_decay=0.3),
    "scaled_with_momentum": dict(lr=0.05, scale_parameter=True, relative_step=False, beta1=0.8, weight_decay=0.1,
                                 clip_threshold=0.5, decay_rate=-0.6),
    "late": dict(scale_parameter=True, relative_step=True),
}


def steps(shape, case, **arguments):
    torch.manual_seed(len(shape))
    parameter = torch.nn.Parameter(0.3 * torch.randn(shape, dtype=torch.float64))
    optimizer = Adafactor([parameter], **arguments)
    made = {"shape": list(shape), "weight": parameter.detach().flatten().tolist(), "steps": []}
    for number in range(4):
        if case == "late" and number == 1:
            optimizer.state[parameter]["step"] = 19999
        gradient = torch.randn(shape, dtype=torch.float64) * (0.5 if number == 2 else 0.01)
        parameter.grad = gradient.clone()
        optimizer.step()
        made["steps"].append({"number": optimizer.state[parameter]["step"], "gradient": gradient.flatten().tolist(),
                              "weight": parameter.detach().flatten().tolist()})
    return made


cases = [{"name": name, "arguments": arguments, "parameters": [steps(shape, name, **arguments) for shape in ((4, 3), (5,))]}
         for name, arguments in CASES.items()]
text = json.dumps(cases, indent=None, separators=(",", ":"))
pathlib.Path(__file__).with_name("fixtures").joinpath("adafactor.json").write_text(text.replace('{"name"', '\n{"name"') + "\n")
