"""What other packages may use of recorded outcomes, criteria and their versions. Tables and SQL are in store."""

from meruit.outcomes.export_csv import OUTCOME_HEADINGS, outcome_cells
from meruit.outcomes.store.basis import VersionBasis
from meruit.outcomes.store.criteria import (
    NamedCriteria,
    RegisterCriteria,
    find,
    history,
)
from meruit.outcomes.store.criteria import (
    page as page_criteria,
)
from meruit.outcomes.store.daily import DailyVerdicts, count_by_day
from meruit.outcomes.store.erase import (
    Discard,
    ErasureResult,
    erase,
    release,
)
from meruit.outcomes.store.read import (
    OutcomeFilter,
    count_up_to,
    criteria_body,
    criteria_from,
    evidence,
    for_agent,
    full_record,
    full_record_json,
    page,
    page_sorted,
    summary,
    version,
    versions,
)
from meruit.outcomes.store.segments import SegmentReader
from meruit.outcomes.store.versions import RunPlace, VersionReader, VersionRow, run_of
from meruit.outcomes.store.write import (
    ERASED,
    LATEST_RESULTS,
    AddVersions,
    LatestResult,
    NewOutcome,
    NewVersion,
    RecordAll,
    RecordedVersion,
    commit_criteria,
    result_from,
)

__all__ = [
    "ERASED",
    "LATEST_RESULTS",
    "OUTCOME_HEADINGS",
    "AddVersions",
    "DailyVerdicts",
    "Discard",
    "ErasureResult",
    "LatestResult",
    "NamedCriteria",
    "NewOutcome",
    "NewVersion",
    "OutcomeFilter",
    "RecordAll",
    "RecordedVersion",
    "RegisterCriteria",
    "RunPlace",
    "SegmentReader",
    "VersionBasis",
    "VersionReader",
    "VersionRow",
    "commit_criteria",
    "count_by_day",
    "count_up_to",
    "criteria_body",
    "criteria_from",
    "erase",
    "evidence",
    "find",
    "for_agent",
    "full_record",
    "full_record_json",
    "history",
    "outcome_cells",
    "page",
    "page_criteria",
    "page_sorted",
    "release",
    "result_from",
    "run_of",
    "summary",
    "version",
    "versions",
]
