"""PostgreSQL's protocol, byte for byte: frames (stage 1) and pgoutput messages (stage 2). All modules are pure."""
