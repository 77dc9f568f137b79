-- Lets applications name who changes rows and why, as headers of the records (context.enabled, docs/context.md). As a
-- superuser:
--
--     psql -d shop -v token_file=/etc/cdcd/context-token -f context.sql
--         (without token_file: contexts have no token)
--
-- Then grant it to the applications:
--
--     GRANT USAGE ON SCHEMA cdcd TO shop_app; GRANT EXECUTE ON FUNCTION cdcd.set_context(jsonb) TO shop_app;
--
-- An application calls the function at the start of a transaction:
--
--     SELECT cdcd.set_context('{"actor": "anna", "request": "4711"}');
--
-- The function adds the field role, which is the role that logged in, and the token. The token is in a user mapping,
-- because nobody but its owner and superusers can read it there, and no publication can have it. A role that is not a
-- superuser needs -v wrapper=postgres_fdw, after CREATE EXTENSION postgres_fdw and GRANT USAGE on it.
\set ON_ERROR_STOP on
\if :{?wrapper}
\else
\set wrapper cdcd_context
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

SET LOCAL client_min_messages = warning;
DROP SERVER IF EXISTS cdcd_context CASCADE;
SELECT NOT EXISTS (SELECT FROM pg_foreign_data_wrapper WHERE fdwname = :'wrapper') AS "is_missing" \gset
\if :is_missing
CREATE FOREIGN DATA WRAPPER :"wrapper";
\endif
CREATE SERVER cdcd_context FOREIGN DATA WRAPPER :"wrapper";
\if :{?token_file}
\set token `cat :'token_file'`
SELECT format('CREATE USER MAPPING FOR CURRENT_USER SERVER cdcd_context OPTIONS (password %L)', :'token') \gexec
\endif

CREATE OR REPLACE FUNCTION cdcd.set_context(context jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    secret text;
BEGIN
    IF jsonb_typeof(context) <> 'object' THEN
        RAISE EXCEPTION USING MESSAGE = 'the context must be a JSON object';
    END IF;
    SELECT substr(option, length('password=') + 1) INTO secret
      FROM pg_user_mappings CROSS JOIN LATERAL unnest(umoptions) AS option
     WHERE srvname = 'cdcd_context' AND usename = current_user AND option LIKE 'password=%';
    context := context || jsonb_build_object('role', session_user);
    IF secret IS NOT NULL THEN
        context := context || jsonb_build_object('token', secret);
    END IF;
    PERFORM pg_logical_emit_message(true, 'cdcd.context', context::text);
END
$$;
REVOKE ALL ON FUNCTION cdcd.set_context(jsonb) FROM PUBLIC;
COMMIT;
