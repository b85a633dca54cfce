"""Documents that are faxed, as small as their formats allow."""

import struct


def pdf(*pages: str) -> bytes:
    """A PDF with a line of text on each page; an empty text makes a page without any."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    parts = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        page = "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>"
        parts += [
            f"{page}/Contents {5 + 2 * number} 0 R>>",
            f"<</Length {len(stream)}>>stream\n{stream}\nendstream",
        ]
    body, places = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(body))
        body += f"{number} 0 obj{part}endobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(parts) + 1}\n0000000000 65535 f \n{table}trailer<</Size {len(parts) + 1}/Root 1 0 R>>"
    return body + f"{end}\nstartxref\n{len(body)}\n%%EOF\n".encode()


def tiff(pages: int, *, order: str = "<", circle: bool = False) -> bytes:
    """A TIFF of so many one-pixel pages; in a circle, the last one is followed by the first."""
    content = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 10 if pages else 0) + b"\xff\0"
    for number in range(pages):
        tags = [(256, 3, 1), (257, 3, 1), (273, 4, 8), (279, 4, 1)]
        content += struct.pack(f"{order}H", len(tags))
        for tag, kind, value in tags:
            content += struct.pack(f"{order}HHI", tag, kind, 1)
            content += struct.pack(f"{order}HH" if kind == 3 else f"{order}I", *((value, 0) if kind == 3 else (value,)))
        following = len(content) + 4 if number + 1 < pages else 10 if circle else 0
        content += struct.pack(f"{order}I", following)
    return content
