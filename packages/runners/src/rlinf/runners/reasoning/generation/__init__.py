"""Which problems are asked, which answers are waited for, and which of them are trained on."""
