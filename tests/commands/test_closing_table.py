"""The table at the end of a run: what it took, what it left, and what to run next."""

import json

from graf.commands.run import closing_table
from graf.runtime.limits import GB


def rows_of(table):
    return {name: text.strip() for name, _, text in (line.partition(":") for line in table.splitlines())}


def test_a_run_that_is_done_tells_images_time_peaks_and_paths(smoke, tmp_path):
    config = smoke("training.max_steps=3000", "training.batch_size=4", f"training.outdir={tmp_path}")
    config.run_dir.mkdir()
    held = ({"host_bytes": 2 * GB, "reserved_bytes": GB}, {"host_bytes": GB, "reserved_bytes": 3 * GB})
    rows = [json.dumps({"time": 0, "step": 1, "phase": "train"} | row) for row in held]
    (config.run_dir / "memory.jsonl").write_text("\n".join(rows))
    found = rows_of(closing_table(config, 12_000, 1000, 300, {"pictures": "", "next": "python eval.py"}))
    assert found == {
        "done": f"{config.expname} at step 3,000",
        "images": "12,000 seen, 4 in each step",
        "time": "5 min for 1,000 steps",
        "memory": "2.00 GB of the host at most, 3.00 GB of the GPU at most",
        "checkpoint": str(config.run_dir / "model.pt"),
        "next": "python eval.py",
    }


def test_what_is_not_known_is_left_out(smoke, tmp_path):
    assert "memory" not in rows_of(closing_table(smoke(f"training.outdir={tmp_path}"), 80, 1, 1, {}))


def test_images_of_steps_with_another_batch_size_are_counted_as_they_were(smoke, tmp_path):
    config = smoke("training.max_steps=10", "training.batch_size=2", f"training.outdir={tmp_path}")
    assert rows_of(closing_table(config, 28, 6, 1, {}))["images"] == "28 seen, 2 in each step of this session"
