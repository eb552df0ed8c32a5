"""Cycles of kernels from the compiler's schedules."""

import pytest

from tpu import hlo, kernels

# As libtpu writes them: a legend, then bundles; `>` marks depth in loops.
SCHEDULE = """
= control target key start
LB: loop body
= control target key end
     0x0   :  { %1 = sst [smem:[#spill]] %s2 }
     0x1   :  {}
     0x2 LB: > { %s3 = sadd.s32 1, %s3 }
     0x3   :  {}
     0x4 PF: > { %v1 = vadd.f32 %v1, %v1 }
     0x5   : > { %p1 = scmp.ge.s32.totalorder %s3, 10 /* loop exit test */ }
     0x6   : > { %s4 = smov %s5 }
     0x7   :  { %9 = sbr.rel (!%p1) target = $region1 }
     0x8   : > { %s6 = smov %s7 }
     0x9   :  { %10 = vsyncpa [#allocation6], 1 }
"""

NESTED = """
     0x0 LB: > { %a = b }
     0x1 LB: >> { %a = b }
     0x2   : >> { %p = scmp.ge.s32.totalorder %s, 4 /* loop exit test */ }
     0x3 LB: >> { %a = b }
     0x4   : >> { %p = scmp.ge.s32.totalorder %s, 5 /* loop exit test */ }
     0x5   : > { %p = scmp.ge.s32.totalorder %s, 3 /* loop exit test */ }
     0x6   :  { %a = b }
"""


def test_bundles_in_a_loop_count_each_turn():
  # 2 before, 5 in the loop with its empty bundle, 3 behind the branch.
  assert kernels.schedule_cycles(SCHEDULE) == 2 + 10 * 5 + 3


def test_nested_loops_multiply():
  assert kernels.schedule_cycles(NESTED) == 3 * (1 + 4 * 2 + 5 * 2 + 1) + 1


def test_straight_code_counts_once():
  assert kernels.schedule_cycles("0x0 : { %a = b }\n0x1 : {}\n") == 2


def test_loop_without_constant_end_is_an_error():
  text = SCHEDULE.replace("%s3, 10 /*", "%s3, %s9 /*")
  with pytest.raises(hlo.HloError, match="trip count"):
    kernels.schedule_cycles(text)


def test_folder_gives_cycles_by_name(tmp_path):
  (tmp_path / "123-flash.1-01-final_bundles.txt").write_text(NESTED)
  (tmp_path / "123-flash.1-00-schedule-analysis_final_bundles.txt").write_text(
    "no bundles here"
  )
  (tmp_path / "124-open-01-final_bundles.txt").write_text(
    SCHEDULE.replace("10 /*", "%s9 /*")
  )
  assert kernels.read_cycles(tmp_path) == {"flash.1": 61}


def test_flags_are_added_to_those_given(monkeypatch, tmp_path):
  monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_one=1")
  kernels.dump_schedules(tmp_path)
  import os

  given = os.environ["LIBTPU_INIT_ARGS"].split()
  assert given[0] == "--xla_one=1"
  assert f"--xla_jf_dump_to={tmp_path}" in given
