"""What PostgreSQL says, byte for byte: frames (stage 1) and pgoutput messages (stage 2). Pure."""
