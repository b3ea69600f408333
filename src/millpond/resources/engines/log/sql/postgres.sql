-- The tables and functions of resource pools in PostgreSQL 13 or newer. `millpond` runs this itself when it may; where it
-- may not, an owner runs it once and grants EXECUTE on the functions and all rights on the tables and the sequence.
-- Each function is one verb of the log, atomic in its own transaction, and needs no session: pgbouncer is welcome.

CREATE TABLE IF NOT EXISTS millpond_resource_pool (
    name text PRIMARY KEY,
    format integer NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,          -- of the gate: grows whenever it comes into other hands
    decider text NOT NULL DEFAULT '',         -- the companion that has the gate
    active bigint NOT NULL DEFAULT 0,         -- its last sign of work, in microseconds
    seq bigint NOT NULL DEFAULT 0,            -- of the last item
    tip bytea NOT NULL DEFAULT '',            -- its mark
    base bigint NOT NULL DEFAULT 0,           -- the item up to which the snapshot goes
    snapshot bytea
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS millpond_resource_item (
    pool text NOT NULL, seq bigint NOT NULL, tip bytea NOT NULL, body bytea NOT NULL, PRIMARY KEY (pool, seq)
);
CREATE TABLE IF NOT EXISTS millpond_resource_parcel (
    id bigserial PRIMARY KEY, pool text NOT NULL, body bytea NOT NULL
);
CREATE INDEX IF NOT EXISTS millpond_resource_parcel_pool ON millpond_resource_parcel (pool, id);
CREATE TABLE IF NOT EXISTS millpond_resource_session (
    pool text NOT NULL, session text NOT NULL, companion text NOT NULL, witness bytea NOT NULL,
    PRIMARY KEY (pool, session)
);
CREATE TABLE IF NOT EXISTS millpond_resource_companion (
    pool text NOT NULL, companion text NOT NULL, beat bigint NOT NULL, PRIMARY KEY (pool, companion)
);

CREATE OR REPLACE FUNCTION millpond_resource_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Post parcels, take the gate if it is wanted and free, and return what is new after `known_` (all with -1).
CREATE OR REPLACE FUNCTION millpond_resource_sync(
    pool_ text, me_ text, wants_ boolean, lease_ bigint, known_ bigint, tip_ bytea, format_ integer, posts_ bytea[],
    OUT found_format integer, OUT now_ bigint, OUT epoch_ bigint, OUT seq_ bigint, OUT last_ bytea, OUT base_ bigint,
    OUT snapshot_ bytea, OUT seqs_ bigint[], OUT tips_ bytea[], OUT bodies_ bytea[], OUT ids_ bigint[], OUT inbox_ bytea[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found millpond_resource_pool%ROWTYPE;
    wanted boolean;
BEGIN
    now_ := millpond_resource_now();
    wanted := wants_ OR EXISTS (SELECT 1 FROM millpond_resource_parcel WHERE pool = pool_);
    IF wanted OR known_ < 0 THEN  -- all of it at one moment
        INSERT INTO millpond_resource_pool (name, format) VALUES (pool_, format_) ON CONFLICT (name) DO NOTHING;
        SELECT * INTO found FROM millpond_resource_pool WHERE name = pool_ FOR UPDATE;
    ELSE
        SELECT * INTO found FROM millpond_resource_pool WHERE name = pool_;
    END IF;
    found_format := coalesce(found.format, format_);
    IF found_format <> format_ THEN RETURN; END IF;
    INSERT INTO millpond_resource_parcel (pool, body) SELECT pool_, body FROM unnest(posts_) WITH ORDINALITY AS p (body, place)
        ORDER BY place;
    IF wanted AND (found.decider IN (me_, '') OR now_ - found.active >= lease_ OR found.active > now_ + lease_) THEN
        IF found.decider <> me_ THEN found.epoch := found.epoch + 1; END IF;
        found.decider := me_;
        UPDATE millpond_resource_pool SET epoch = found.epoch, decider = me_, active = now_ WHERE name = pool_;
    ELSIF cardinality(posts_) > 0 THEN
        PERFORM pg_notify('millpond_resources', md5(pool_) || E'\n' || 'to:' || coalesce(found.decider, ''));
    END IF;
    epoch_ := CASE WHEN found.decider = me_ THEN found.epoch ELSE 0 END;
    seq_ := coalesce(found.seq, 0);
    last_ := coalesce(found.tip, '');
    base_ := coalesce(found.base, 0);
    IF known_ < 0 THEN
        snapshot_ := found.snapshot;
    END IF;
    IF known_ < 0 OR known_ <> seq_ OR tip_ <> last_ THEN
        SELECT array_agg(seq ORDER BY seq), array_agg(tip ORDER BY seq), array_agg(body ORDER BY seq)
            INTO seqs_, tips_, bodies_ FROM millpond_resource_item
            WHERE pool = pool_ AND seq > known_ AND seq <= seq_;
    END IF;
    IF epoch_ > 0 THEN
        SELECT array_agg(id ORDER BY id), array_agg(body ORDER BY id) INTO ids_, inbox_
            FROM (SELECT id, body FROM millpond_resource_parcel WHERE pool = pool_ ORDER BY id LIMIT 1000) AS first_ones;
    END IF;
END $$;

-- Append an item (seq 0: none) for who has the gate, on top of the item it was decided on; refuse else.
CREATE OR REPLACE FUNCTION millpond_resource_append(
    pool_ text, epoch_ bigint, previous_ bytea, seq_ bigint, tip_ bytea, body_ bytea, taken_ bigint[], image_ bytea,
    keep_ bigint, hints_ text, OUT done_ boolean, OUT now_ bigint, OUT ids_ bigint[], OUT inbox_ bytea[]
) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    now_ := millpond_resource_now();
    UPDATE millpond_resource_pool SET active = now_,
        seq = CASE WHEN seq_ > 0 THEN seq_ ELSE seq END, tip = CASE WHEN seq_ > 0 THEN tip_ ELSE tip END
        WHERE name = pool_ AND epoch = epoch_ AND tip = previous_;
    done_ := FOUND;
    IF NOT done_ THEN RETURN; END IF;
    IF seq_ > 0 THEN
        INSERT INTO millpond_resource_item VALUES (pool_, seq_, tip_, body_);
        IF image_ IS NOT NULL THEN
            UPDATE millpond_resource_pool SET snapshot = image_, base = seq_ WHERE name = pool_;
            DELETE FROM millpond_resource_item WHERE pool = pool_ AND seq <= seq_ - keep_;
        END IF;
    END IF;
    IF seq_ > 0 OR hints_ <> '' THEN
        PERFORM pg_notify('millpond_resources', md5(pool_) || E'\n' || 'all:' || md5(pool_) || hints_);
    END IF;
    DELETE FROM millpond_resource_parcel WHERE id = ANY (taken_);
    SELECT array_agg(id ORDER BY id), array_agg(body ORDER BY id) INTO ids_, inbox_
        FROM (SELECT id, body FROM millpond_resource_parcel WHERE pool = pool_ ORDER BY id LIMIT 1000) AS first_ones;
END $$;

-- Note that a companion lives; tell of the sessions whose companion has long been silent. The clock may have been set back.
CREATE OR REPLACE FUNCTION millpond_resource_beat(pool_ text, me_ text, lost_ bigint)
RETURNS TABLE (session_ text, witness_ bytea, silence_ bigint, beat_ bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE now_ bigint := millpond_resource_now();
BEGIN
    INSERT INTO millpond_resource_companion VALUES (pool_, me_, now_)
        ON CONFLICT (pool, companion) DO UPDATE SET beat = now_;
    DELETE FROM millpond_resource_companion c WHERE c.pool = pool_ AND abs(now_ - c.beat) > lost_ AND NOT EXISTS
        (SELECT 1 FROM millpond_resource_session s WHERE s.pool = pool_ AND s.companion = c.companion);
    RETURN QUERY SELECT s.session, s.witness, abs(now_ - c.beat), c.beat FROM millpond_resource_session s
        JOIN millpond_resource_companion c ON c.pool = s.pool AND c.companion = s.companion
        WHERE s.pool = pool_ AND abs(now_ - c.beat) > lost_;
END $$;

-- Delete a pool, all of it at one moment.
CREATE OR REPLACE FUNCTION millpond_resource_drop(pool_ text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM millpond_resource_pool WHERE name = pool_ FOR UPDATE;
    DELETE FROM millpond_resource_item WHERE pool = pool_;
    DELETE FROM millpond_resource_parcel WHERE pool = pool_;
    DELETE FROM millpond_resource_session WHERE pool = pool_;
    DELETE FROM millpond_resource_companion WHERE pool = pool_;
    DELETE FROM millpond_resource_pool WHERE name = pool_;
END $$;
