/* A durable lane: its writer, the flusher and who recovers it, each of which may be killed between any two steps, and a
 * machine that stops at any step: marlcore/memory/watermark.py, flusher.py and recovery.py, and lane.c's
 * mc_lane_pledge, by hand.
 *
 * Two rows of two words, each word in a page of its own; a page with the counters; and of each place of a mark two
 * pages. The kernel may write a page to the disk at any moment, so the machine that stops chooses of each page any
 * state since it was last put there. */

#define ROWS 2
#ifndef TICKETS
#define TICKETS 3
#endif
#ifndef CUTS
#if defined(PLEDGE_CLEARED_TOO_EARLY) || defined(ENTERED_BEFORE_THE_END)
#define CUTS 2
#else
#define CUTS 1
#endif
#endif
#ifndef KILLS
#if defined(PREDECESSORS_PLEDGE_BELIEVED) || defined(LOWERED_BELOW_THE_RESERVATION)
#define KILLS 1
#else
#define KILLS 0
#endif
#endif
#define HOLLOW 200
#ifndef ENTERED_BEFORE_THE_END
#define UNTIL_THE_END 100  /* no boot */
#else
#define UNTIL_THE_END boot
#endif

#define whole(t, r) (t + ROWS >= r)
#define larger(a, b) (a > b -> a : b)

typedef state {
    byte row[ROWS * 2];    /* what each word holds: ticket + 1, and 10 more for each cut before */
    byte committed, reserved, pledged;
    byte number[2], made[2], watermark[2];          /* of each place: its first page, with its boot */
    byte again[2], promised[2], boot[2];          /* its second page: number and boot stand for the checksum */
};
state memory, disk;         /* disk: as it was when a call last waited for it */
byte between[ROWS * 2];     /* what a word held before its last change since then */
byte promised, upheld;      /* the words that writers read; after a cut, those of any moment before */
byte truth[TICKETS + 1];    /* what was committed as each ticket's row */
byte boot;
bool down;                  /* the machine stopped */
bool recovers;              /* a process does, with the flusher's lock */
bool alive[3];              /* the writer, the flusher */
byte doomed;                /* 1: the writer, 2: the flusher */
byte kills;

#define agrees(s, p) (s.number[p] == s.again[p] && s.made[p] == s.boot[p] && s.number[p] % 2 == p)
#ifdef CHECKSUM_OF_THE_WRONG_PLACE
#define valid(s, p) agrees(s, 1 - p)
#else
#ifdef NO_CHECKSUM
#define valid(s, p) true
#else
#define valid(s, p) agrees(s, p)
#endif
#endif
#define newest(s) (!valid(s, 1) || (valid(s, 0) && s.number[0] > s.number[1]) -> 0 : 1)
#ifdef NO_BOOT_ID
#define of_this_boot true
#else
#define of_this_boot (memory.made[newest(memory)] == boot)
#endif

inline copy(to, from) {
    to.row[0] = from.row[0]; to.row[1] = from.row[1]; to.row[2] = from.row[2]; to.row[3] = from.row[3];
    to.committed = from.committed; to.reserved = from.reserved; to.pledged = from.pledged;
    to.number[0] = from.number[0]; to.made[0] = from.made[0]; to.watermark[0] = from.watermark[0];
    to.number[1] = from.number[1]; to.made[1] = from.made[1]; to.watermark[1] = from.watermark[1];
    to.again[0] = from.again[0]; to.promised[0] = from.promised[0]; to.boot[0] = from.boot[0];
    to.again[1] = from.again[1]; to.promised[1] = from.promised[1]; to.boot[1] = from.boot[1]
}

/* A call that waits for the disk. What the kernel wrote back of a page meanwhile is among the states below. */
inline sync() {
    d_step {
        copy(disk, memory);
        between[0] = memory.row[0]; between[1] = memory.row[1];
        between[2] = memory.row[2]; between[3] = memory.row[3]
    }
}

inline put(word, content) {
    d_step { between[word] = memory.row[word]; memory.row[word] = content }
}

/* What a page is on the disk: as it was put there, or as it was at any moment since. */
inline lose_word(word) {
    if
    :: memory.row[word] = disk.row[word]
    :: memory.row[word] != disk.row[word] -> skip
    :: between[word] != disk.row[word] && between[word] != memory.row[word] -> memory.row[word] = between[word]
    fi
}

inline lose_place(place) {
    if
    :: memory.number[place] = disk.number[place]; memory.made[place] = disk.made[place];
        memory.watermark[place] = disk.watermark[place]
    :: memory.number[place] != disk.number[place] || memory.made[place] != disk.made[place] ||
        memory.watermark[place] != disk.watermark[place] -> skip
    fi;
    if
    :: memory.again[place] = disk.again[place]; memory.promised[place] = disk.promised[place];
        memory.boot[place] = disk.boot[place]
    :: memory.again[place] != disk.again[place] || memory.promised[place] != disk.promised[place] ||
        memory.boot[place] != disk.boot[place] -> skip
    fi
}

inline lose() {
    lose_word(0);
    lose_word(1);
    lose_word(2);
    lose_word(3);
    if
    :: memory.committed = disk.committed; memory.reserved = disk.reserved; memory.pledged = disk.pledged
    :: memory.committed != disk.committed || memory.reserved != disk.reserved ||
        memory.pledged != disk.pledged -> skip
    fi;
    lose_place(0);
    lose_place(1);
    sync()
}

proctype writer() {
    byte c, top, value;
restart:
    atomic { !down && of_this_boot -> alive[1] = true };
    {
end:
        do
        :: memory.committed < TICKETS ->
            d_step {
                c = memory.committed;
                top = larger(memory.reserved, c + 1);
                value = c + 1 + 10 * boot
            };
            if
#ifdef PREDECESSORS_PLEDGE_BELIEVED
            :: top <= larger(promised, memory.pledged)
            :: top > larger(promised, memory.pledged) ->
#else
            :: top <= larger(promised, upheld)
            :: top > larger(promised, upheld) ->
#endif
#ifndef NO_PROMISE
                memory.pledged = larger(memory.pledged, top);
#ifndef PLEDGE_NOT_ON_DISK
                d_step {
                    disk.committed = memory.committed;
                    disk.reserved = memory.reserved;
                    disk.pledged = memory.pledged
                };
#endif
                upheld = memory.pledged
#else
                skip
#endif
            fi;
            memory.reserved = top;
            put(2 * (c % ROWS), value);
            put(2 * (c % ROWS) + 1, value);
            d_step { truth[c] = value; memory.committed = c + 1 }
        od
    } unless { down || doomed == 1 };
    d_step {
        doomed = (doomed == 1 -> 0 : doomed);
        alive[1] = false;
        c = 0; top = 0; value = 0
    };
    goto restart
}

proctype flusher() {
    byte n, w, p, place, ahead;
restart:
    atomic { !down && !recovers -> alive[2] = true };
    {
end:
        do
        :: d_step { memory.watermark[newest(memory)] < memory.committed ->
                place = newest(memory);
                n = memory.number[place] + 1;
                p = memory.promised[place];
                w = memory.committed
            };
#ifndef WATERMARK_BEFORE_ROWS
            sync();
#endif
            if  /* by how fast rows came before */
            :: ahead = 0
            :: ahead = 3
            fi;
#ifdef PROMISE_LOWERED
            p = w + ahead;
#else
            if
            :: w + ahead >= p -> p = w + ahead
            :: w + ahead < p ->
                promised = w + ahead;  /* later writers read it */
                if
#ifndef LOWERED_BESIDE_A_WRITER
                :: alive[1] -> promised = p
                :: !alive[1] ->
#else
                :: true ->
#endif
#ifndef LOWERED_BELOW_THE_RESERVATION
                    p = larger(w + ahead, memory.reserved)  /* of a writer that was killed inside an append */
#else
                    p = w + ahead
#endif
                fi
            fi;
#endif
#ifdef ONE_PLACE
            place = newest(memory);
            n++;  /* of the same parity */
#else
            place = n % 2;
#endif
#ifdef PROMISED_BEFORE_THE_DISK
            promised = p;
#endif
            d_step { memory.number[place] = n; memory.made[place] = boot; memory.watermark[place] = w };
            d_step { memory.again[place] = n; memory.promised[place] = p; memory.boot[place] = boot };
            sync();
            promised = p;
            d_step { n = 0; w = 0; p = 0; place = 0; ahead = 0 }
        od
    } unless { down || doomed == 2 };
    d_step {
        doomed = (doomed == 2 -> 0 : doomed);
        alive[2] = false;
        n = 0; w = 0; p = 0; place = 0; ahead = 0
    };
    goto restart
}

proctype killer() {
end:
    do
    :: atomic { kills < KILLS && doomed == 0 && !down -> kills++; doomed = 1 }
    :: atomic { kills < KILLS && doomed == 0 && !down -> kills++; doomed = 2 }
    od
}

inline check() {
    d_step {
        t = (memory.reserved > ROWS -> memory.reserved - ROWS : 0);
        do
        :: t < memory.committed ->
            assert(memory.row[2 * (t % ROWS)] == truth[t] && memory.row[2 * (t % ROWS) + 1] == truth[t]);
            t++
        :: else -> break
        od;
        t = 0
    }
}

/* A mark of recovery, in the place after that of the newest. */
inline first_half(made_in) {
    d_step {
        t = memory.number[place] + 1;
        memory.number[t % 2] = t;
        memory.made[t % 2] = made_in;
        memory.watermark[t % 2] = w
    }
}

inline second_half(made_in) {
    d_step {
        memory.again[t % 2] = t;
        memory.promised[t % 2] = h;
        memory.boot[t % 2] = made_in;
        t = 0
    }
}

/* What may happen between two steps of a recovery. */
inline or_stop() {
    if
    :: cuts < CUTS -> goto stop
    :: kills < KILLS -> kills++; goto again
    :: skip
    fi
}

/* The machine stops, at any step, and comes up again; the first process to open the lane recovers it. */
proctype power() {
    byte cuts, place, w, h, t;
end:
    do
    :: cuts < CUTS ->
stop:  skip;
        atomic { cuts++; down = true; recovers = true; boot++; lose() };
        d_step { !alive[1] && !alive[2] -> down = false };
again: assert(valid(memory, 0) || valid(memory, 1));
        if
        :: of_this_boot -> goto up
        :: else
        fi;
        d_step {
            place = newest(memory);
            w = memory.watermark[place];
            h = larger(memory.promised[place], memory.pledged)
        };
        assert(w <= h);
        if
        :: w > 0 && h > w - 1 + ROWS ->
            h = w - 1 + ROWS;
            d_step {
                memory.row[2 * ((w - 1) % ROWS)] = HOLLOW;
                memory.row[2 * ((w - 1) % ROWS) + 1] = HOLLOW;
                truth[w - 1] = HOLLOW
            }
        :: w == 0 -> h = 0
        :: else
        fi;
        d_step { memory.committed = w; memory.reserved = h };
        d_step {
            t = w;
            do
            :: t < TICKETS -> truth[t] = 0; t++
            :: else -> break
            od;
            t = 0
        };
        check();
#ifdef PLEDGE_CLEARED_TOO_EARLY
        memory.pledged = 0;
#endif
        sync();
        or_stop();
        h = (w == 0 -> ROWS : h);
        first_half(UNTIL_THE_END);
        or_stop();
        second_half(UNTIL_THE_END);
        or_stop();
        sync();
        or_stop();
        d_step { memory.pledged = 0; upheld = 0; promised = h };
        or_stop();
        sync();
        place = 1 - place;
        first_half(boot);
        or_stop();
        second_half(boot);
up:     skip;
#ifdef NO_BOOT_ID
        check();
#endif
        d_step { recovers = false; place = 0; w = 0; h = 0; t = 0 }
    od
}

init {
    d_step {
        memory.promised[0] = ROWS;
        memory.number[1] = 9;  /* nothing was ever written there */
        copy(disk, memory);
        promised = ROWS
    };
    atomic { run writer(); run flusher(); run killer(); run power() }
}
