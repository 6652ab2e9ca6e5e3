from __future__ import annotations

from pathlib import Path

from hotloop.probe.attach.sampler import PROBE, Sampler
from hotloop.probe.attach.sites import Sites, module_of
from hotloop.probe.attach.watch import Watch


def test_line_in_which_the_probe_was_at_work_says_so(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    sampler = Sampler(watch)
    watch.tried(sampler._sample)
    sampler._sample()
    depth = watch.enter("forward")
    watch.tried(sampler._sample)
    watch.leave(depth)
    sampler.close_step(0, counted=True)
    found = {(line.phase, line.inside) for line in sampler.lines()}
    assert found == {("unattributed", PROBE), ("unattributed", None), ("forward", None)}
    assert {line.site.rpartition(":")[0] for line in sampler.lines()} == {Sites().short(__file__)}


def test_code_that_torch_generated_is_nobodys_own() -> None:
    sites = Sites()
    generated = compile("0", "/tmp/torchinductor_me/ab/cab.py", "exec")
    assert not sites.own(generated)
    assert sites.own(compile("0", "/home/me/torch_things/train.py", "exec"))


def test_installed_code_is_named_from_its_package_on() -> None:
    packages = "/v/lib/python3.11/site-packages"
    assert module_of(f"{packages}/torch/nn/utils/clip_grad.py") == "torch.nn.utils.clip_grad"
    assert module_of(f"{packages}/torch/optim/__init__.py") == "torch.optim"
    assert module_of("/usr/lib/python3/dist-packages/yaml/reader.py") == "yaml.reader"
    assert module_of("/usr/lib/python3.11/json/decoder.py") == "decoder"
    assert module_of("/home/me/project/loss.py") == "loss"
    assert module_of("/usr/lib/python3.11/json/__init__.py") == "json"
