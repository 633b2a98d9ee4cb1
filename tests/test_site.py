"""The documentation as a site, which `make docs` builds."""

import importlib.util
import subprocess
import sys
from pathlib import Path, PurePosixPath

import graf

import pytest
import yaml

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site_pages.py")
site_pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(site_pages)


def pages(nav):
    for entry in nav:
        if isinstance(entry, dict):
            for below in entry.values():
                yield from pages(below)
        else:
            yield entry


def test_every_page_is_in_the_contents():
    nav = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(nav) == sorted(written | {*site_pages.BESIDE.values(), "reference.md"})


@pytest.mark.parametrize(
    "folder, text, turned",
    [
        ("", "[a](docs/method.md#ccsr)", "[a](method.md#ccsr)"),
        ("", "![a](docs/sweep.png) and [b](CONTRIBUTING.md)", "![a](sweep.png) and [b](CONTRIBUTING.md)"),
        ("docs", "[a](../README.md#two-commands), [b](running.md)", "[a](index.md#two-commands), [b](running.md)"),
        ("docs/lab", "[a](../running.md) [b](../../CONTRIBUTING.md)", "[a](../running.md) [b](../CONTRIBUTING.md)"),
        ("docs", "[weights](../weights/toy_cars.md), [here](#below), box [x0, y0]", "weights, [here](#below), box [x0, y0]"),
        ("docs", "[GRAF](https://arxiv.org/abs/2007.02442)", "[GRAF](https://arxiv.org/abs/2007.02442)"),
    ],
)
def test_links_lead_to_where_the_site_has_their_targets(folder, text, turned):
    assert site_pages.turned(text, PurePosixPath(folder)) == turned


def test_the_reference_has_every_public_name():
    assert [f"::: {home}.{name}" in site_pages.reference() for name, home in graf.HOMES.items()] == [True] * len(graf.HOMES)


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="MkDocs, which `make test` and `make docs` install")
def test_the_site_is_built_without_a_broken_link(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").exists()
