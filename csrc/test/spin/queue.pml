/* A trajectory queue whose writers wait for room and whose reader waits for a batch: marlcore/queue/gates.py and
 * reader.py, by hand.
 *
 * Each writer is one thread that fills any of its LANES lanes, or one alone for ever: the other agents are dead.
 * The reader may be killed between any two stores; what it has in hand is lost then. That rows are read whole, and that
 * an event loses no wake-up, are the lane's models'. */

#ifndef WRITERS
#define WRITERS 2
#endif
#define LANES 2
#define ALL (WRITERS * LANES)
#ifndef CAPACITY
#define CAPACITY 2         /* rows of a lane */
#endif
#ifndef BATCH
#define BATCH 3            /* more than the whole rows of one lane of each writer */
#endif
#ifndef ROWS
#define ROWS 3             /* that each writer adds; the newest of a lane is not whole */
#endif
#ifndef KILLS
#define KILLS 1
#endif

/* In shared memory. */
byte committed[ALL], released[ALL], position[ALL];
bool asked[ALL];
byte looks[WRITERS];       /* since each one asked, at most 2 */
bool rows_came, room_came[WRITERS];  /* since the one that would sleep last looked */

byte done;                 /* writers with no row left */
byte filled;               /* rows of the batch that the reader has begun */
byte delivered, lost;      /* rows that the reader returned, and those with which it was killed */
bool doomed;
byte kills;

#define unread(lane) (committed[lane] - position[lane])
#define whole(lane) (unread(lane) > 0 -> unread(lane) - 1 : 0)
#define crammed(lane) (committed[lane] - released[lane] == CAPACITY)

inline ask(lane) {
#ifndef NEVER_ASKED
    asked[lane] = true;
#endif
#ifndef NOBODY_WOKEN
    rows_came = true;
#endif
#ifdef A_LOOK_THAT_HAD_BEGUN_COUNTS
    looks[me] = 1
#else
    looks[me] = 0
#endif
}

proctype writer(byte me) {
    byte left = ROWS, lane, now;
    do
    :: left > 0 ->
        if
        :: lane = me * LANES
        :: lane = me * LANES + 1
        fi;
        if
        :: crammed(lane) -> ask(lane);
            do
            :: room_came[me] = false;
#ifdef LOOKS_AFTER_ROOM
                if
                :: !crammed(lane) -> break
                :: else
                fi;
                assert(looks[me] < 2);
#else
                now = looks[me];
                if
                :: !crammed(lane) -> break
                :: else -> assert(now < 2)  /* else it raises Deadlocked */
                fi;
#endif
                room_came[me]
            od;
            asked[lane] = false;
            now = 0
        :: else
        fi;
        assert(!crammed(lane));
        d_step { committed[lane]++; rows_came = true; left-- }
    :: left == 0 -> break
    od;
    lane = 0;
    done++
}

inline release() {
    d_step {               /* lets writers overwrite what was consumed; every row is accounted for */
        some = 0;
        do
        :: lane < ALL ->
            assert(released[lane] <= position[lane] && position[lane] <= committed[lane]);
            released[lane] = position[lane];
            some = some + position[lane];
            lane++
        :: else -> break
        od;
        assert(some == delivered + lost + filled);
        some = 0;
        lane = 0;
        do
        :: lane < WRITERS -> room_came[lane] = true; lane++
        :: else -> break
        od;
        lane = 0
    }
}

inline count_look() {
    d_step {
        do
        :: lane < WRITERS -> looks[lane] = (looks[lane] < 2 -> looks[lane] + 1 : 2); lane++
        :: else -> break
        od;
        lane = 0
    }
}

proctype reader() {
    byte lane, ready, some;
    bool enough;
again:
    {
        release();         /* what a killed one had consumed */
        do
        :: d_step {        /* copies by one look at the lanes; one store then makes the cursor that of what was copied */
                rows_came = false;
                ready = filled;
                do
                :: lane < ALL -> ready = ready + whole(lane); lane++
                :: else -> break
                od;
                enough = ready >= BATCH;
                lane = 0;
                do
                :: lane < ALL && filled < BATCH ->
                    some = (enough || (asked[lane] && crammed(lane)) -> whole(lane) : 0);
                    some = (some < BATCH - filled -> some : BATCH - filled);
#ifdef ROOM_WITHOUT_TAKING
                    released[lane] = released[lane] + some;
                    some = (enough -> some : 0);
#endif
                    position[lane] = position[lane] + some;
                    filled = filled + some;
                    lane++
                :: else -> break
                od;
                assert(!enough || filled == BATCH);
                delivered = delivered + (enough -> BATCH : 0);
                filled = (enough -> 0 : filled);
                ready = 0; some = 0; lane = 0
            };
#ifdef LOOKED_BEFORE_RELEASE
            if
            :: !enough -> count_look()
            :: else
            fi;
#endif
            release();
            if
            :: enough -> enough = false
            :: else ->
#ifndef LOOKED_BEFORE_RELEASE
                count_look();
#endif
end:
                rows_came
            fi
        od
    } unless { doomed };
    d_step { doomed = false; lost = lost + filled; filled = 0; enough = false };
    goto again
}

init {
    byte i;
    atomic {
        do
        :: i < WRITERS -> run writer(i); i++
        :: else -> break
        od;
        i = 0;
        run reader()
    };
    do
    :: atomic { kills < KILLS && !doomed -> kills++; doomed = true }
    :: kills == KILLS || done == WRITERS -> break
    od
}
