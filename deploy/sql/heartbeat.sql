-- A heartbeat, for those who must tell a quiet database from a broken pipeline (PostgreSQL 14 and newer):
--
--     psql -d shop -f heartbeat.sql
--
-- cdcd does not need it to keep up: an idle database does not hold WAL back. It is a logical decoding message, so it
-- writes no table and needs no publication, and it arrives in the topic <prefix>.message with op m and prefix
-- cdcd.heartbeat; its content is the time at which it was sent. Let something call it, such as
-- heartbeat.action_query: SELECT public.cdcd_heartbeat(), or pg_cron:
--
--     SELECT cron.schedule('cdcd heartbeat', '* * * * *', 'SELECT cdcd_heartbeat()');
\set ON_ERROR_STOP on
CREATE OR REPLACE FUNCTION cdcd_heartbeat() RETURNS pg_lsn
LANGUAGE sql VOLATILE
AS $$ SELECT pg_logical_emit_message(false, 'cdcd.heartbeat', now()::text) $$;
REVOKE ALL ON FUNCTION cdcd_heartbeat() FROM PUBLIC;
