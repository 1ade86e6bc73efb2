import pytest

from tether.machine import versions

from .places import INSTALLED, loading, named, place, torch_of


def look(tmp_path, **changes):
    return list(versions.look(place(tmp_path, **changes)))


def test_what_is_as_asked_for_is_ok_and_the_rest_is_counted(tmp_path):
    found = look(tmp_path)
    assert {finding.status for finding in found} == {"ok"}
    assert named(found, "torch").value == "2.13.0+cpu, built for CPUs"
    assert named(found, "others").value == "1 packages as asked for"


@pytest.mark.parametrize(
    ("package", "version", "status", "said", "way_out"),
    [
        ("transformers", "5.10.0", "fail", "too old", "pip install 'transformers<5.20,>=5.19'"),
        ("transformers", "5.24.0", "warn", "newer than what tether is tested with", "pip install 'transformers<5.20"),
        ("transformers", None, "fail", "not installed", "pip install 'transformers<5.20"),
        ("torch", None, "fail", "not installed", "pip install 'torch>=2.9'"),
        ("torch", "2.4.0", "fail", "too old", "pip install 'torch>=2.9'"),
        ("rich", "13.0", "fail", "too old", "pip install 'rich>=14'"),
        ("numpy", "nonsense", "fail", "too old", "pip install 'numpy>=2.0'"),
    ],
)
def test_a_wrong_version_comes_with_its_pip_line(tmp_path, package, version, status, said, way_out):
    has = {**INSTALLED, package: version}
    finding = named(look(tmp_path, version_of=has.get), package)
    assert finding.status == status
    assert said in finding.value
    assert finding.way_out.startswith(way_out)


def test_a_python_that_is_too_old_fails(tmp_path):
    finding = named(look(tmp_path, python="3.9.2"), "python")
    assert (finding.status, finding.value) == ("fail", "3.9.2; tether asks for >=3.11")


@pytest.mark.parametrize("error", [ImportError("cannot import _C"), OSError("libcudart.so: no such file\nmore")])
def test_a_torch_that_breaks_on_import_is_a_finding(tmp_path, error):
    finding = named(look(tmp_path, load=loading({"torch": error})), "torch")
    assert finding.status == "fail"
    assert f"cannot be imported: {type(error).__name__}: {str(error).splitlines()[0]}" in finding.value
    assert finding.way_out == "pip install --force-reinstall 'torch>=2.9'"


def test_a_torch_for_cuda_is_told_from_one_for_processors(tmp_path):
    found = look(tmp_path, load=loading({"torch": torch_of(cuda="12.8")}))
    assert named(found, "torch").value.endswith("built for CUDA 12.8")


def test_an_extra_is_optional_and_comes_with_its_pip_line(tmp_path):
    finding = named(look(tmp_path), "extras")
    assert (finding.status, finding.value) == ("ok", "ray not")
    assert finding.way_out == "optional: pip install 'tether-rl[ray]'"
    finding = named(look(tmp_path, version_of={**INSTALLED, "ray": "2.60.0"}.get), "extras")
    assert (finding.value, finding.way_out) == ("ray installed", "")


def test_an_extra_of_a_wrong_version_is_worth_a_look(tmp_path):
    finding = named(look(tmp_path, version_of={**INSTALLED, "ray": "2.9.0"}.get), "extra ray")
    assert (finding.status, finding.way_out) == ("warn", "pip install 'tether-rl[ray]'")
    assert finding.value == "ray 2.9.0, too old: tether asks for >=2.50"


def test_the_development_extra_is_nobody_elses_business(tmp_path):
    assert not [finding for finding in look(tmp_path) if "dev" in finding.value]


def test_a_tether_that_pip_does_not_know_is_said_to_be_one(tmp_path):
    finding = named(look(tmp_path, requirements=(), version_of={}.get), "tether")
    assert (finding.status, finding.way_out) == ("warn", "in its checkout: pip install -e .")


def test_nothing_but_torch_is_imported(tmp_path):
    imported = []

    def load(name):
        imported.append(name)
        return torch_of()

    look(tmp_path, load=load)
    assert imported == ["torch"]
