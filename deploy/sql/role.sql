-- A role that can do what cdcd needs and nothing else. As a superuser, or a role with CREATEROLE and REPLICATION:
--
--     psql -d shop -v password=… -f role.sql                    (-v role=cdcd by default)
--
-- It reads no table, unless snapshot.sql lets it: pgoutput decodes the WAL under the right to replicate, and the catalog is open to everybody. So
-- whoever has its password can read every published change of every database of the server: keep it well.
-- All instances of a pipeline use the same role: a standby ends the sessions of an active one that is frozen or cut
-- off, and a role may see and end its own sessions without any further right (track_activities must be on).
-- It does not own or create the publication: publication.sql does. On Amazon RDS: GRANT rds_replication instead of
-- REPLICATION; on Cloud SQL and AlloyDB: ALTER ROLE … WITH REPLICATION.
--
-- pg_hba.conf needs a line for its two kinds of connections; for a logical walsender both are to the database:
--     hostssl shop cdcd 10.0.0.0/8 scram-sha-256
\set ON_ERROR_STOP on
\if :{?role}
\else
\set role cdcd
\endif

-- One active and one standby have three sessions each at most, and a snapshot has snapshot.parallelism more (4); a
-- takeover needs room for both.
CREATE ROLE :"role" LOGIN REPLICATION CONNECTION LIMIT 20 PASSWORD :'password';
SELECT current_database() AS database \gset
GRANT CONNECT ON DATABASE :"database" TO :"role";
