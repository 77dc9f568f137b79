-- Lets cdcd's role add tables to a publication and drop tables from it, although it owns neither the publication nor
-- the tables (postgres.publication_changes: function). As a superuser:
--
--     psql -d shop -v publication=cdcd_shop -v include='app.*, billing.invoice_*' -f follow.sql
--         (-v exclude='app.audit_*' for tables that are never published; -v role=cdcd by default)
--
-- The patterns are those of postgres.tables, separated by commas: * for any characters, ? for one, a part in double
-- quotes literally. They are the limit of what the role can publish, whatever its configuration says. Run the script
-- again to change them. A role that is not a superuser can run it too, if it owns the publication and the tables; then
-- postgres.trusted_owners must name that role.
--
-- cdcd must be able to read new tables. As each owner of tables:
--     ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT SELECT ON TABLES TO cdcd;
\set ON_ERROR_STOP on
\if :{?role}
\else
\set role cdcd
\endif
\if :{?exclude}
\else
\set exclude ''
\endif

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;

-- Whoever owns the schema could put another function in place of this one.
SELECT NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'cdcd') AS "is_missing",
       EXISTS (SELECT FROM pg_namespace WHERE nspname = 'cdcd' AND nspowner <> current_user::regrole) AS "is_taken" \gset
\if :is_taken
DO $$ BEGIN RAISE 'schema cdcd belongs to another role; drop it, or ALTER SCHEMA cdcd OWNER TO this role'; END $$;
\endif
\if :is_missing
CREATE SCHEMA cdcd;
\endif

CREATE TABLE IF NOT EXISTS cdcd.published_patterns (
    publication name NOT NULL,
    role name NOT NULL,
    is_excluded bool NOT NULL,
    schema_like text NOT NULL,
    table_like text NOT NULL
);

-- A part of a pattern as a pattern of LIKE.
CREATE OR REPLACE FUNCTION cdcd.as_like(part text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN part LIKE '"%"'
        THEN regexp_replace(replace(substr(part, 2, length(part) - 2), '""', '"'), '([\\%_])', '\\\1', 'g')
        ELSE replace(replace(regexp_replace(part, '([\\%_])', '\\\1', 'g'), '*', '%'), '?', '_') END
$$;

DELETE FROM cdcd.published_patterns WHERE publication = :'publication';
WITH given(is_excluded, patterns) AS (
    VALUES (false, :'include'), (true, :'exclude')
), patterns AS (
    SELECT is_excluded, found
      FROM given CROSS JOIN LATERAL regexp_matches(
           patterns, '\s*("(?:[^"]|"")+"|[^",.\s][^",.]*)\.("(?:[^"]|"")+"|[^",.]*[^",.\s])\s*(,|$)', 'g') AS found
)
INSERT INTO cdcd.published_patterns
SELECT :'publication', :'role', is_excluded, cdcd.as_like(found[1]), cdcd.as_like(found[2]) FROM patterns;

-- Nothing of a pattern may be left over.
SELECT count(*) > 0 AS "is_malformed"
  FROM (VALUES (:'include'), (:'exclude')) AS given(patterns)
 WHERE regexp_replace(
       patterns, '\s*("(?:[^"]|"")+"|[^",.\s][^",.]*)\.("(?:[^"]|"")+"|[^",.]*[^",.\s])\s*(,|$)', '', 'g') !~ '^\s*$' \gset
\if :is_malformed
DO $$ BEGIN RAISE 'include or exclude is not a list of patterns of the form schema.table'; END $$;
\endif

CREATE OR REPLACE FUNCTION cdcd.change_publication(publication name, added oid[], dropped oid[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Parameters that have the names of columns.
    chosen CONSTANT name := publication;
    names text;
    found bigint;
BEGIN
    IF NOT EXISTS (
        SELECT FROM cdcd.published_patterns p WHERE p.publication = chosen AND p.role = session_user AND NOT p.is_excluded
    ) THEN
        RAISE insufficient_privilege USING MESSAGE = format('role %s may not change publication %s', session_user, chosen);
    END IF;
    IF cardinality(added) > 1000 OR cardinality(dropped) > 1000 THEN
        RAISE program_limit_exceeded USING MESSAGE = 'at most 1000 tables at once';
    END IF;
    IF cardinality(added) > 0 THEN
        -- UPDATE and DELETE fail on a published table without a replica identity.
        SELECT string_agg(format('ONLY %I.%I', n.nspname, c.relname), ', '), count(*) INTO names, found
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = ANY (added) AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
           AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
           AND EXISTS (SELECT FROM cdcd.published_patterns p
                        WHERE p.publication = chosen AND p.role = session_user AND NOT p.is_excluded
                          AND n.nspname::text LIKE p.schema_like AND c.relname::text LIKE p.table_like)
           AND NOT EXISTS (SELECT FROM cdcd.published_patterns p
                            WHERE p.publication = chosen AND p.is_excluded
                              AND n.nspname::text LIKE p.schema_like AND c.relname::text LIKE p.table_like)
           AND (c.relreplident = 'f' OR EXISTS (
                SELECT FROM pg_index i
                 WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate
                                                                  WHEN 'i' THEN i.indisreplident ELSE false END));
        IF found <> (SELECT count(DISTINCT each) FROM unnest(added) AS each) THEN
            RAISE invalid_parameter_value
                USING MESSAGE = 'a table is not there, has no replica identity, or is not one that follow.sql was given';
        END IF;
        EXECUTE format('ALTER PUBLICATION %I ADD TABLE %s', chosen, names);
    END IF;
    IF cardinality(dropped) > 0 THEN
        SELECT string_agg(format('ONLY %I.%I', n.nspname, c.relname), ', ') INTO names
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (dropped);
        EXECUTE format('ALTER PUBLICATION %I DROP TABLE %s', chosen, names);
    END IF;
END
$$;

REVOKE ALL ON FUNCTION cdcd.change_publication(name, oid[], oid[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION cdcd.as_like(text) FROM PUBLIC;
GRANT USAGE ON SCHEMA cdcd TO :"role";
GRANT EXECUTE ON FUNCTION cdcd.change_publication(name, oid[], oid[]) TO :"role";
COMMIT;

SELECT is_excluded, schema_like, table_like FROM cdcd.published_patterns WHERE publication = :'publication';
