"""What a run did, as one HTML file: its result, curves, times, videos or transcripts, and configuration."""

from rlinf.runners.reporting.report.page import write_page as write_page
