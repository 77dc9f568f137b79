"""cdcd's records beside those of a real Debezium (`capture.py`)."""
