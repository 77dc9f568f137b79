-- What a pipeline delivers, as the owner of the tables:
--
--     psql -d shop -v publication=cdcd_shop -v tables='customers, orders, order_items' -f publication.sql
--
-- Everything, later tables too, needs a superuser: CREATE PUBLICATION cdcd_shop FOR ALL TABLES;
-- a schema with what is to come (15 and newer) too:  CREATE PUBLICATION cdcd_shop FOR TABLES IN SCHEMA public;
\set ON_ERROR_STOP on

-- Changes of partitions go to their table's topic, and may be moved between partitions.
CREATE PUBLICATION :"publication" FOR TABLE :tables WITH (publish_via_partition_root = true);

-- From now on PostgreSQL refuses UPDATE and DELETE on published tables without a key. These are they; give each a
-- primary key, or ALTER TABLE … REPLICA IDENTITY FULL.
SELECT format('%I.%I', published.schemaname, published.tablename) AS "without a replica identity"
FROM pg_publication_tables AS published
JOIN pg_class AS class ON class.oid = format('%I.%I', published.schemaname, published.tablename)::regclass
WHERE published.pubname = :'publication'
  AND NOT EXISTS (
    SELECT FROM pg_index
    WHERE indrelid = class.oid
      AND CASE class.relreplident WHEN 'd' THEN indisprimary WHEN 'i' THEN indisreplident ELSE false END
  )
  AND class.relreplident <> 'f'
ORDER BY 1;
