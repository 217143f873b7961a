"""A test of fanfs over a real cluster. See `campaign.py` for its steps."""
