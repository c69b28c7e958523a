/* Rows from a node's lane to a lane at home, while messages are lost, doubled and overtaken, and the ingest is killed
 * between any two stores: marlcore/cluster/relay.py, ingest.py and bookings.py, by hand.
 *
 * Two senders have the seat one after the other, each with a lane of its own that keeps two rows; the first one sends
 * on when it has lost the seat. That a row is read and appended whole is takeover.pml's and the lane's models'.
 * With MOVES, the home moves with its rows, but without its bookings, as a saved or durable replay does. */

#ifndef TICKETS
#define TICKETS 4
#endif
#define KEPT 2
#ifndef KILLS
#define KILLS 1
#endif

#ifndef REWINDS
#define REWINDS 1
#endif

#ifndef MOVES
#if defined(SENT_AGAIN_AFTER_A_MOVE) || defined(UNANSWERED_SENT_AGAIN)
#define MOVES 1
#else
#define MOVES 0
#endif
#endif

#define tickets(e) (e == 1 -> TICKETS : 1)
#define oldest(e) (made[e] > KEPT -> made[e] - KEPT : 0)

byte made[3];              /* rows that each epoch's writer has committed */
bool asked[3], answered[3];
byte answer[3];
bool unknown[3];           /* with the answer: the lane has rows, which may be this sender's */
bool moved[3];             /* the sender has yet to turn to the next home */
byte elsewhere[3];         /* below, rows were sent to an earlier home */
bool granted;              /* the seat, to epoch 2 */
chan network = [1] of { byte, byte, byte, byte };  /* epoch, after, first, rows */

/* In shared memory at home: the lane's counter, and its booking. */
byte committed;
byte epoch;
short offset;
byte seam, lost;
#if defined(CURSOR_AFTER_ROWS) || defined(CURSOR_BEFORE_ROWS)
byte cursor;
#endif

bool doomed, between;      /* the ingest is to die; its successor has new bookings */
byte kills, moves;

/* What must be. */
bool arrived[3 * TICKETS];
byte expected[3];
byte last_epoch, missing, lost_before;  /* of this epoch, and of those before it */

proctype sender(byte me) {
    byte next, first, rows, rewinds, sent, floor;
    bool open;
    me == 1 || granted;
end:
    do
    :: made[me] < tickets(me) -> made[me]++
    :: atomic { moved[me] ->
        moved[me] = false;
        open = false;
#ifdef UNANSWERED_SENT_AGAIN
        elsewhere[me] = next;
#else
        elsewhere[me] = sent;
#endif
        next = 0 }
    :: atomic { !moved[me] && !open && !asked[me] && !answered[me] -> asked[me] = true }
    :: atomic { answered[me] -> answered[me] = false; next = answer[me]; open = true; asked[me] = false;
#ifndef SENT_AGAIN_AFTER_A_MOVE
        floor = (unknown[me] -> elsewhere[me] : 0);
#endif
        unknown[me] = false }
    :: atomic { !moved[me] && open && next < made[me] && floor < made[me] && nfull(network) ->
        first = (next < oldest(me) -> oldest(me) : next);
        first = (first < floor -> floor : first);
        rows = made[me] - first;
        if
        :: network!me, next, first, rows
        :: skip  /* it is lost */
        fi;
        next = first + rows;
#if MOVES
        sent = (next > sent -> next : sent);
#endif
        first = 0;
        rows = 0 }
    :: atomic { open && rewinds < REWINDS -> open = false; next = 0; rewinds++ }  /* no answer came, or a refusal */
    od
}

inline tell_where() {
    if
    :: from < epoch
    :: from > epoch ->
#ifdef EPOCH_BEFORE_ITS_OFFSET
        d_step { epoch = from; lost_before = lost; missing = 0 };
        d_step { offset = -committed; seam = committed }
#else
        d_step { epoch = from; offset = -committed; seam = committed; lost_before = lost; missing = 0
#if defined(CURSOR_AFTER_ROWS) || defined(CURSOR_BEFORE_ROWS)
            ; cursor = 0
#endif
        }
#endif
    :: else
    fi;
    d_step {
        if
        :: from == epoch ->
#if defined(CURSOR_AFTER_ROWS) || defined(CURSOR_BEFORE_ROWS)
            answer[from] = cursor;
#else
            answer[from] = offset + committed;
#endif
            assert(answer[from] == expected[from] + lost - lost_before - missing);  /* it continues there */
#if MOVES
            unknown[from] = answer[from] == 0 && committed > 0;
#endif
            answered[from] = true
        :: else
        fi;
        asked[from] = false;
        from = 0
    }
}

inline commit_rows() {
    atomic {
        assert(from == epoch && from >= last_epoch);
        do
        :: first < stop ->
            assert(!arrived[(from - 1) * TICKETS + first]);  /* none twice */
            arrived[(from - 1) * TICKETS + first] = true;
            /* A seam where the row before is not its predecessor, and nowhere else. */
            assert((seam == committed) == (from != last_epoch || first != expected[from]));
            missing = missing + first - expected[from];
            expected[from] = first + 1;
            last_epoch = from;
            committed++;
            first++
        :: else -> break
        od;
        assert(lost == lost_before + missing)  /* each loss is counted */
    }
}

inline take() {
    d_step {
#if defined(CURSOR_AFTER_ROWS) || defined(CURSOR_BEFORE_ROWS)
        next = cursor;
#else
        next = offset + committed;
#endif
        stop = first + rows
    };
    if
#ifndef NO_EPOCHS
    :: from != epoch
#endif
#ifndef GAPS_UNDECLARED
    :: after > next
#endif
    :: else ->
        if
#ifndef DUPLICATES_TAKEN
        :: stop <= next -> first = stop
        :: stop > next && first < next -> first = next
#endif
        :: first > next ->
            /* No row is given up that its sender has, except one that an earlier home may have. */
            assert(first <= oldest(from) || first <= elsewhere[from] || from != epoch);
#ifdef LOST_BEFORE_THE_OFFSET
            lost = lost + first - next;
            d_step { offset = offset + first - next; seam = committed }
#else
#ifdef OFFSET_BEFORE_THE_SEAM
            d_step { lost = lost + first - next; offset = offset + first - next };
            seam = committed
#else
#ifndef BOOKED_AFTER_ROWS
            d_step { lost = lost + first - next; offset = offset + first - next; seam = committed }
#endif
#endif
#endif
        :: else
        fi;
#ifdef CURSOR_BEFORE_ROWS
        cursor = stop;
#endif
        if
        :: first < stop -> commit_rows()
        :: else
        fi;
#ifdef CURSOR_AFTER_ROWS
        cursor = stop
#endif
    fi
}

inline move() {
    d_step {
        between = false; epoch = 0; offset = 0; seam = 0; lost = 0;
        lost_before = 0; missing = 0; last_epoch = 0;
        i = 1;
        do
        :: i <= 2 ->
            moved[i] = true; asked[i] = false; answered[i] = false; unknown[i] = false; expected[i] = 0;
            i++
        :: else -> break
        od;
        i = 0
    };
    if
    :: network?_, _, _, _
    :: empty(network)
    fi
}

proctype ingest() {
    byte i;
    byte from, after, first, rows, stop;
    short next;
end_again:
    {
end:
        do
        :: atomic { asked[1] -> from = 1 }; tell_where()
        :: atomic { asked[2] -> from = 2 }; tell_where()
        :: atomic { network?from, after, first, rows };
            take();
            d_step { from = 0; after = 0; first = 0; rows = 0; stop = 0; next = 0 }
        :: atomic { network?<from, after, first, rows> };  /* it will come again */
            take();
            d_step { from = 0; after = 0; first = 0; rows = 0; stop = 0; next = 0 }
        od
    } unless { doomed };
    atomic {
        if
        :: between -> move()
        :: else
        fi
    };
    d_step { doomed = false; from = 0; after = 0; first = 0; rows = 0; stop = 0; next = 0 };
    goto end_again
}

init {
    atomic { run sender(1); run sender(2); run ingest() };
    do
    :: atomic { !granted -> granted = true }
    :: atomic { kills < KILLS && !doomed -> kills++; doomed = true }
    :: atomic { moves < MOVES && !doomed -> moves++; doomed = true; between = true }
    :: kills == KILLS && moves == MOVES && granted -> break
    od
}
