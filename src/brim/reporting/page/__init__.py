"""`brim report`: findings, predictions, plans and sweeps as one HTML page that needs nothing else."""

from brim.reporting.page.documents import Document, read_documents
from brim.reporting.page.page import render_page

__all__ = ["Document", "read_documents", "render_page"]
