-- Lets the role read what the publication publishes, for snapshots (snapshot.mode: initial is the default). As the
-- owner of the tables, after publication.sql, and again when tables are added:
--
--     psql -d shop -v publication=cdcd_shop -f snapshot.sql      (-v role=cdcd by default)
--
-- Not needed with snapshot.mode: never. Only a role with BYPASSRLS reads tables that have row-level security.
\set ON_ERROR_STOP on
\if :{?role}
\else
\set role cdcd
\endif

SELECT DISTINCT format('GRANT USAGE ON SCHEMA %I TO %I', schemaname, :'role')
FROM pg_publication_tables WHERE pubname = :'publication' \gexec
SELECT format('GRANT SELECT ON %I.%I TO %I', schemaname, tablename, :'role')
FROM pg_publication_tables WHERE pubname = :'publication' \gexec
