"""Elements that R4 allows once: several values where one is allowed make a resource invalid."""

from collections.abc import Mapping
from typing import Any

from meruit.checks.formats.json_path import CHOICE_TYPES

SINGLE = frozenset(
    """
    active authored authoredOn birthDate created date description doNotPerform effectiveDateTime encounter end gender
    id implicitRules intent issued language meta minutesDuration onsetDateTime priority recordedDate sent start status
    subject
    """.split()  # noqa: SIM905 - words are easier to read than quotes
)
"""Elements of a resource that hold one value in every type of R4 that has them, but for those below."""
SEVERAL = {
    "subject": frozenset(
        """
        Account Contract MedicinalProductContraindication MedicinalProductIndication MedicinalProductInteraction
        MedicinalProductPackaged MedicinalProductUndesirableEffect
        """.split()  # noqa: SIM905 - words are easier to read than quotes
    ),
}
"""Where R4 has a list all the same: every one of its types that has one under such a name."""
CHOICES = (
    *("value", "medication", "effective", "onset", "abatement", "performed", "occurrence", "deceased", "multipleBirth"),
    *("reported", "product", "serviced", "timing", "scheduled", "asNeeded", "dose", "rate"),
)
"""Elements of which a resource has one variant: `valueQuantity` or `valueString`."""
VARIANTS = frozenset(base + kind for base in CHOICES for kind in CHOICE_TYPES)
"""Every name of every variant; nearly all parts have none of them and need no further check."""


def cardinality_error(resource: Mapping[str, Any]) -> str | None:
    """Which element occurs several times although R4 allows one; None where none does."""
    kind = resource.get("resourceType")
    for name, value in resource.items():
        if isinstance(value, list) and name in SINGLE and kind not in SEVERAL.get(name, ()):
            return f"{name} is a list, and R4 allows one value there"
    return _duplicate_choice_error(resource)


# Any: parts of a document.
def _duplicate_choice_error(part: Any) -> str | None:
    """Two variants of one choice, at any depth."""
    # First, because most parts are text.
    if isinstance(part, str):
        return None
    if isinstance(part, list):
        return next((why for one in part if (why := _duplicate_choice_error(one)) is not None), None)
    if not isinstance(part, Mapping):
        return None
    variants = VARIANTS.intersection(part)
    for base in CHOICES if variants else ():
        several = [name for name in variants if name.startswith(base) and name[len(base) :] in CHOICE_TYPES]
        if len(several) > 1:
            return f"{' and '.join(sorted(several)[:3])} occur together, and R4 allows one of them"
        if several and isinstance(part[several[0]], list):
            return f"{several[0]} is a list, and R4 allows one value there"
    return next((why for one in part.values() if (why := _duplicate_choice_error(one)) is not None), None)
