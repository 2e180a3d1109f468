"""`rlinf replay`: looks at what runs collected, and brings it into other forms."""
