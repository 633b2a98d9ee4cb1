"""README and docs tell the truth: their tables are the code's, what they name exists, and both READMEs say the same."""

import re
import textwrap
from collections import Counter
from pathlib import Path

from graf.commands.jobs import JOBS, METRICS
from graf.config import CONFIG_DIR, Config, PoseConfig, load_config
from graf.config.reading import config_rows
from graf.models.registry import DISCRIMINATORS, FIELDS
from write_tables import MARKS, TABLES, pages

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-TW.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NOTES = sorted((ROOT / "docs" / "lab").glob("*.md"))  # dated: their links lead somewhere, their commands were true once
LINK = re.compile(r"\]\(([^)\s]+)\)")
MEASURING = ("metrics", "consistency")  # whose numbers are in another table
LEADS_OUT = ("http://", "https://")


def commands(text: str) -> list[str]:
    """The lines of the indented blocks, without their comments, or what follows a path in the list of folders."""
    lines = re.findall(r"^ {4,}(\S.*)$", text, re.MULTILINE)
    bare = [re.split(r"\s+#|^#|\s{2,}", line)[0] for line in lines]
    return [line for line in bare if line]


def anchors(page: str) -> set[str]:
    """The targets that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_tables_and_the_default_config_are_those_of_the_code():
    texts = pages()
    assert {mark[1] for text in texts.values() for mark in MARKS.findall(text)} == set(TABLES)
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, "run `python bench/write_tables.py`"


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        ("configuration", "Which radiance field", FIELDS),
        ("configuration", "Which discriminator", DISCRIMINATORS),
        ("evaluation", "Is that a good value?", METRICS),
        ("evaluation", "What eval.py makes", [f"--{job.flag.name}" for job in JOBS if job.flag.name not in MEASURING]),
    ],
)
def test_tables_that_are_written_by_hand_have_a_row_for_each(page, heading, names):
    section = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.lower() for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 2 and [name for name in names if not any(name in row for row in rows)] == []


def test_the_default_config_says_what_the_dataclasses_say():
    assert load_config(CONFIG_DIR / "default.yaml") == load_config() == Config()


def test_files_they_name_exist():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"\b(?:configs|tools|bench|tests|docs|graf)/[\w/.]+\.(?:yaml|py|md|png|gif)", text))
    assert len(named) > 5
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_contributing_names_each_benchmark():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    programs = {path.name for path in (ROOT / "bench").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}
    assert programs == set(re.findall(r"`bench/(\w+\.py)`", page.split("## Benchmarks")[1].split("\n## ")[0]))


def programs_called(text: str) -> list[tuple[str, list[str]]]:
    """The programs that the page's commands call, each with its flags."""
    spans = re.findall(r"`([^`\n]+)`", text)
    calls = (
        re.match(r".*?(?<![\w/])((?:tools/|bench/)?\w+\.py)\b(.*)", line)
        for line in [*commands(text.replace("\\\n", " ")), *spans]
    )
    return [(call[1], re.findall(r"(?<=\s)--(\w+)", call[2].split(" -- ")[0])) for call in calls if call]


def test_programs_and_flags_they_call_exist():
    called = [call for page in PAGES for call in programs_called(page.read_text(encoding="utf-8"))]
    assert ("tools/upscale.py", ["shrink"]) in called and ("train.py", ["config", "resume", "partial"]) in called
    shared = [ROOT / "graf" / "runtime" / "command_line.py", ROOT / "graf" / "commands" / "jobs.py"]
    for program, flags in called:
        found = [file for file in (ROOT / program, ROOT / "tools" / program, *ROOT.glob(f"graf/**/{program}")) if file.exists()]
        assert found, program
        sources = "".join(file.read_text(encoding="utf-8") for file in (found[0], *shared))
        assert [flag for flag in flags if not re.search(rf'"(--)?{flag}"', sources)] == [], program


def test_config_keys_they_name_exist():
    keys = {key for schema in (Config, PoseConfig) for key, _, _ in config_rows(schema)}
    sections = {key.split(".")[0] for key in keys if "." in key}
    for page in PAGES:
        text = page.read_text(encoding="utf-8").split("\n## Older names")[0]
        named = re.findall(rf"(?<![\w/.-])(?:{'|'.join(sections)})\.[a-z_]\w*(?:\.[a-z_]\w*)?", text)
        named = {name for name in named if not re.search(r"\.(jsonl?|md|py|pt)$", name)}
        assert [name for name in sorted(named) if not any(f"{key}.".startswith(f"{name}.") for key in keys)] == [], page.name


def test_make_targets_it_names_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake (\w+)`", README))
    assert named
    assert named <= targets


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    targets = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not link.startswith(LEADS_OUT)]
    for target in targets:
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("page", [README, CHINESE], ids=["README.md", "README.zh-TW.md"])
def test_its_python_saves_a_png(page, tmp_path, monkeypatch):
    """The shipped weights stand in for a run's."""
    code = "    import graf" + page.partition("\n    import graf")[2].partition("\n\n`load_generator`")[0]
    code = textwrap.dedent(code).replace("results/default/model.pt", str(ROOT / "weights" / "toy_cars.safetensors"))
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    with Image.open(tmp_path / "four_cars.png") as image:
        assert image.size == (4 * 130 + 2, 130 + 2)  # four pictures of 128 pixels, 2 between


def linked_from(page: Path) -> set[Path]:
    """The pages that a page links to."""
    links = (
        link.partition("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8")) if not link.startswith(LEADS_OUT)
    )
    return {(page.parent / link).resolve() for link in links if link.endswith(".md")}


def test_every_page_is_reached_from_the_readme_in_two_clicks():
    first = linked_from(ROOT / "README.md")
    second = set().union(*(linked_from(page) for page in first))
    assert {page for page in (*PAGES, *NOTES) if page.parent != ROOT} - first - second == set()


@pytest.mark.parametrize("note", [note for note in NOTES if note.name != "README.md"], ids=lambda note: note.name)
def test_a_lab_note_promises_nothing_and_names_commits(note):
    """Its file name has the date."""
    title, _, first, *_ = note.read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ") and "nothing in it is promised to hold" in first
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z-]+\.md", note.name)
    assert re.search(r"\b[0-9a-f]{7}\b", note.read_text(encoding="utf-8"))


def test_pages_are_short():
    """But for the configuration, most of which is written from the code, and the changes."""
    lines = {page.name: len(page.read_text(encoding="utf-8").splitlines()) for page in PAGES}
    assert lines.pop("README.md") < 150
    assert {name: n for name, n in lines.items() if n > 200}.keys() <= {"configuration.md", "CHANGELOG.md"}


def test_the_chinese_readme_has_the_same_commands():
    assert "make train" in commands(README) and "python eval.py --report" in commands(README)
    assert commands(CHINESE) == commands(README)


def test_the_chinese_readme_is_as_complete():
    """Section by section the same links and names in code spans."""
    sections, ours = CHINESE.split("\n## "), README.split("\n## ")
    assert len(sections) == len(ours)
    for chinese, english in zip(sections, ours, strict=True):
        spans = (Counter(" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)) for text in (chinese, english))
        assert next(spans) == next(spans), english.splitlines()[0]
        links = (Counter(LINK.findall(text)) - Counter(["README.md", "README.zh-TW.md"]) for text in (chinese, english))
        assert next(links) == next(links), english.splitlines()[0]
