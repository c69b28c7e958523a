/* A durable queue: a writer, the flusher and a learner with checkpoints, each of which may be killed between any two
 * steps, and a machine that stops at any step: marlcore/queue/cursor.py and reader.py, memory/flusher.py, and what
 * run/memory.py asks of a learner, by hand.
 *
 * One lane, each row in a page of its own. That a page, a mark or a recovery is cut in halves, and that others wait for
 * the recovery's end, is durable.pml's: here the machine that stops leaves a mark as it was or as it is, and damages
 * each row since whose writing no call has waited for the disk. */

#ifndef CAPACITY
#define CAPACITY 1         /* rows */
#endif
#ifndef TICKETS
#define TICKETS 2
#endif
#ifndef CUTS
#define CUTS 1
#endif
#ifndef KILLS
#define KILLS 1
#endif

#define WRITER 1
#define FLUSHER 2
#define LEARNER 4

#define larger(a, b) (a > b -> a : b)
#define smaller(a, b) (a < b -> a : b)
#define row_of(t) (10 * boot + t + 1)

typedef mark { byte watermark, promised, released, position };

/* In the queue's file. */
byte row[CAPACITY];        /* row_of what it holds; 0: damaged */
bool dirty[CAPACITY];      /* written since a call last waited for the disk */
byte committed, reserved, pledged, upheld, promised;
byte released, turn, position[2], passed[2];  /* the committed cursor: two words of each half; every row is read */
mark now, disk;            /* the newest mark, and the newest that is surely on disk */
byte pledge;               /* that is surely on disk */

/* The last checkpoint, on disk: the learner's cursor, and what it has learned from. */
byte saved, known[TICKETS];

byte truth[TICKETS];       /* which row was last committed with each ticket, 0: none */
byte boot = 1;
bool agreed = true;        /* since the machine started, the cursor and the checkpoint were made to agree */
byte struck;               /* who is to die */
byte kills, cuts;

/* Everything that was written before is on disk. */
inline sync() {
    dirty[0] = false; dirty[CAPACITY - 1] = false;
    disk.watermark = now.watermark; disk.promised = now.promised;
    disk.released = now.released; disk.position = now.position;
    pledge = pledged
}

proctype writer() provided (struck == 0 || struck & WRITER) {
    byte c, top, limit;
restart:
    {
        struck == 0;
        do
        :: d_step { agreed && committed < TICKETS && released + CAPACITY > committed ->
                c = committed;
                top = larger(reserved, c + 1);
                limit = released + CAPACITY
            };
            if
            :: top <= larger(promised, upheld)
            :: top > larger(promised, upheld) ->
                d_step {
#ifndef PLEDGE_BEYOND_THE_ROOM
                    limit = larger(limit, top);
#else
                    limit = top + CAPACITY;
#endif
                    pledged = larger(pledged, limit)
                };
                d_step { pledge = pledged; upheld = pledged }
            fi;
            d_step {
                assert(c < saved + CAPACITY);  /* else a row is overwritten that no checkpoint knows */
                reserved = top;
                row[c % CAPACITY] = row_of(c);
                dirty[c % CAPACITY] = true
            };
            d_step { truth[c] = row_of(c); committed = c + 1; c = 0; top = 0; limit = 0 }
        :: committed == TICKETS -> break
        od;
end:
        false
    } unless { struck & WRITER };
    d_step { struck = struck & ~WRITER; c = 0; top = 0; limit = 0 };
    goto restart
}

proctype flusher() provided (struck == 0 || struck & FLUSHER) {
    byte free, before, at, w;
restart:
    {
        d_step { struck == 0 -> sync() };  /* of a mark that a predecessor left */
end:
        do
        :: now.watermark != committed || now.position != position[turn % 2] || now.released != released ->
#ifdef CURSOR_AFTER_THE_WATERMARK
            w = committed;
#endif
#ifndef RELEASED_AFTER_THE_CURSOR
            free = released;
#endif
look:       before = turn;
            at = position[before % 2];
            if
            :: d_step { turn == before -> assert(at == passed[before % 2]); before = 0 }
#ifndef NO_SECOND_LOOK
            :: turn != before -> goto look
#else
            :: d_step { turn != before -> assert(at == passed[before % 2]); before = 0 }
#endif
            fi;
#ifdef RELEASED_AFTER_THE_CURSOR
            free = released;
#endif
            d_step {
#ifndef CURSOR_AFTER_THE_WATERMARK
                w = committed;
#endif
#ifndef WATERMARK_BEFORE_ROWS
                sync();
#endif
                now.watermark = w; now.released = free; now.position = at;
#ifndef PROMISE_BEYOND_THE_ROOM
                w = larger(w, free + CAPACITY);
#else
                w = w + CAPACITY;
#endif
                now.promised = larger(now.promised, w);
                free = 0; at = 0; w = 0
            };
            d_step { sync(); promised = now.promised }
        od
    } unless { struck & FLUSHER };
    d_step { struck = struck & ~FLUSHER; free = 0; before = 0; at = 0; w = 0 };
    goto restart
}

inline save() {
    d_step {
        saved = read;
        t = 0;
        do
        :: t < TICKETS -> known[t] = learned[t]; t++
        :: else -> break
        od;
        t = 0
    }
}

/* Makes the cursor that of everything that was read. */
inline commit() {
#ifdef TURN_BEFORE_THE_HALF
    turn++;
    position[turn % 2] = read;
    passed[turn % 2] = read;
#else
#ifdef ONE_HALF
    position[turn % 2] = read;
    passed[turn % 2] = read;
#else
    position[(turn + 1) % 2] = read;
    passed[(turn + 1) % 2] = read;
#endif
#ifdef RELEASED_BEFORE_THE_CURSOR
    released = larger(released, read);
#endif
#ifndef ONE_HALF
    turn++;
#endif
#endif
    released = larger(released, read)
}

proctype learner() provided (struck == 0 || struck & LEARNER) {
    byte read, t, learned[TICKETS];
restart:
    {
        d_step { struck == 0 ->
            read = position[turn % 2];
            assert(read == passed[turn % 2] && released <= read && read <= committed);
            do
            :: t < TICKETS -> learned[t] = known[t]; t++
            :: else -> break
            od;
            t = 0;
            released = larger(released, read)  /* of a commit that was killed before it released */
        };
#ifndef STATE_NOT_GIVEN
        d_step {
            assert(read <= saved);
#ifndef STATE_WITH_ROWS_THAT_WERE_CUT
            read = smaller(saved, committed)
#else
            read = saved
#endif
        };
        commit();
#ifndef CHECKPOINT_NOT_SAVED_ANEW
        save();
#endif
#endif
        agreed = true;
end:
        do
        :: d_step { read < committed ->
                assert(read + CAPACITY >= reserved && row[read % CAPACITY] == truth[read]);
                assert(learned[read] != truth[read]);
                do
                :: t < read -> assert(learned[t] == truth[t]); t++
                :: else -> break
                od;
                t = 0;
                learned[read] = truth[read];
                read++
#ifdef RELEASED_BY_READING
                ; released = read
#endif
            }
        :: read > position[turn % 2] ->
#ifndef COMMIT_BEFORE_THE_CHECKPOINT
            save();
            commit()
#else
            commit();
            save()
#endif
        od
    } unless { struck & LEARNER };
    d_step {
        struck = struck & ~LEARNER;
        read = 0;
        t = 0;
        do
        :: t < TICKETS -> learned[t] = 0; t++
        :: else -> break
        od;
        t = 0
    };
    goto restart
}

/* The machine stops and comes up again; the first process to open the queue recovers it. */
inline cut() {
    if
    :: now.watermark = disk.watermark; now.promised = disk.promised;
        now.released = disk.released; now.position = disk.position
    :: now.watermark != disk.watermark || now.promised != disk.promised ||
        now.released != disk.released || now.position != disk.position -> skip
    fi;
    if
    :: pledged = pledge
    :: pledged != pledge -> skip
    fi;
    d_step {
        row[0] = (dirty[0] -> 0 : row[0]);
        row[CAPACITY - 1] = (dirty[CAPACITY - 1] -> 0 : row[CAPACITY - 1]);
#ifndef NO_BOOT_ID
        assert(now.released <= now.position && now.position <= now.watermark && now.watermark <= now.promised);
        committed = now.watermark;
        reserved = larger(now.promised, pledged);
        now.promised = (committed == 0 -> CAPACITY : smaller(reserved, committed - 1 + CAPACITY));
        if
        :: committed > 0 && reserved > now.promised -> row[(committed - 1) % CAPACITY] = 0
        :: else
        fi;
        reserved = (committed == 0 -> 0 : now.promised);
#ifndef CURSOR_NOT_OF_THE_MARK
        turn = 0; position[0] = now.position; passed[0] = now.position; position[1] = 0; passed[1] = 0;
        released = now.released;
#endif
        promised = now.promised;
        pledged = 0;
        upheld = 0;
        t = committed;
        do
        :: t < TICKETS -> truth[t] = 0; t++
        :: else -> break
        od;
        t = 0;
#endif
        sync()
    }
}

init {
    byte t;
    atomic {
        now.promised = CAPACITY; disk.promised = CAPACITY; promised = CAPACITY;
        run writer(); run flusher(); run learner()
    };
end:
    do
    :: atomic { kills < KILLS && struck == 0 ->
            kills++;
            if
            :: struck = WRITER
            :: struck = FLUSHER
            :: struck = LEARNER
            fi
        }
    :: atomic { cuts < CUTS && struck == 0 ->
            cuts++;
            struck = WRITER | FLUSHER | LEARNER;
#ifndef WRITERS_BEFORE_THE_STATE
            agreed = false;
#endif
            boot++;
            cut()
        }
    od
}
