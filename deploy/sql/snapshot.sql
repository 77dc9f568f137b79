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

-- Rows of a partitioned table are read from its partitions, which the publication does not name.
CREATE TEMPORARY VIEW cdcd_read AS
SELECT published.pubname, namespace.nspname, class.relname
FROM pg_publication_tables AS published
CROSS JOIN LATERAL (SELECT format('%I.%I', published.schemaname, published.tablename)::regclass::oid) AS named(oid)
CROSS JOIN LATERAL (SELECT named.oid UNION SELECT relid::oid FROM pg_partition_tree(named.oid)) AS part(oid)
JOIN pg_class AS class ON class.oid = part.oid
JOIN pg_namespace AS namespace ON namespace.oid = class.relnamespace;

SELECT DISTINCT format('GRANT USAGE ON SCHEMA %I TO %I', nspname, :'role')
FROM cdcd_read WHERE pubname = :'publication' \gexec
SELECT DISTINCT format('GRANT SELECT ON %I.%I TO %I', nspname, relname, :'role')
FROM cdcd_read WHERE pubname = :'publication' \gexec
