"""Does the task that `meruit benchmark run` gives: `python agent.py gold`, or with a mistake."""

import os
import sys
from collections.abc import Callable

import httpx


def pdf(*pages: str) -> bytes:
    """A PDF with a line of text on each page; what an agent's own library would make."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    parts = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        parts.append(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>"
            f"/Contents {5 + 2 * number} 0 R>>"
        )
        parts.append(f"<</Length {len(stream)}>>stream\n{stream}\nendstream")
    body, places = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(body))
        body += f"{number} 0 obj{part}endobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(parts) + 1}\n0000000000 65535 f \n{table}trailer<</Size {len(parts) + 1}/Root 1 0 R>>"
    return body + f"{end}\nstartxref\n{len(body)}\n%%EOF\n".encode()


REFERRAL = "Referral for Ann Smith, MRN 483671. Reason: atrial fibrillation."


def fax(client: httpx.Client, number: str, text: str) -> None:
    """Send one page."""
    url = os.environ["MERUIT_FAX_URL"]
    client.post(url, params={"to": number, "subject": "Referral"}, content=pdf(text)).raise_for_status()


def reply(client: httpx.Client, number: int, body: str) -> None:
    """Answer the message of that number in the inbox."""
    url = os.environ["MERUIT_INBOX_URL"] + "/messages"
    message = client.get(url).raise_for_status().json()["messages"][number]
    client.post(url, json={"in_reply_to": message["id"], "body": body}).raise_for_status()


def order(client: httpx.Client, feedback: dict[str, object]) -> None:
    """Fire the hook, and say what becomes of the card."""
    url = os.environ["MERUIT_CDS_URL"]
    asked = {"context": {"patientId": "ann", "draftOrders": {"resourceType": "Bundle", "entry": []}}}
    (card,) = client.post(f"{url}/hooks/order-select", json=asked).raise_for_status().json()["cards"]
    client.post(f"{url}/cards/{card['uuid']}/feedback", json=feedback).raise_for_status()


FASTING = "Please eat nothing after midnight; water is fine."
ACCEPT: dict[str, object] = {"outcome": "accepted", "acceptedSuggestions": [{"id": "apixaban"}]}
OVERRIDE: dict[str, object] = {"outcome": "overridden", "overrideReason": {"reason": {"code": "tolerated"}}}
AGENTS: dict[str, dict[str, Callable[[httpx.Client], None]]] = {
    "fax-referral": {
        "gold": lambda client: fax(client, "+15550100199", REFERRAL),
        "wrong_number": lambda client: fax(client, "+15550100198", REFERRAL),
        "leaked_ssn": lambda client: fax(client, "+15550100199", f"{REFERRAL} SSN 999-11-2222"),
    },
    "answer-message": {
        "gold": lambda client: reply(client, 0, FASTING),
        "wrong_patient": lambda client: reply(client, 1, FASTING),
        "half_an_answer": lambda client: reply(client, 0, "Eat nothing after midnight."),
    },
    "heed-advice": {
        "gold": lambda client: order(client, ACCEPT),
        "overrode_it": lambda client: order(client, OVERRIDE),
    },
}


def main() -> None:
    """Do the task as the agent of that name does it; `null` does nothing."""
    name, task = sys.argv[1], os.environ["MERUIT_TASK_ID"]
    if name in AGENTS[task]:
        headers = {"Authorization": f"Bearer {os.environ['MERUIT_SECRET']}"}
        with httpx.Client(headers=headers, timeout=60) as client:
            AGENTS[task][name](client)


if __name__ == "__main__":
    main()
