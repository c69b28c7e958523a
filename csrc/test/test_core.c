/* Lanes, words, locks and events, one behaviour a test. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "rows.h"

enum { LIMIT = 1024 };
static_assert(MC_STREAMING_BYTES <= 0x4040, "the least x86_non_temporal_threshold of glibc");

static const uint64_t one_word[] = {8};

/* Names column k of row t; memory that was never written has none. */
static uint64_t name_of(uint64_t ticket, uint64_t k) { return 1 + ticket * 3 + k; }

static void append_rows(struct mc_lane *lane, uint64_t n) {
    static uint8_t rows[3][LIMIT * 8];
    const void *sources[] = {rows[0], rows[1], rows[2]};
    uint64_t first = (uint64_t)mc_lane_committed(lane);
    for (uint64_t k = 0; k < lane->columns; k++) {
        uint64_t pitch = k == 0 ? lane->column[0].stride : lane->column[k].size;
        for (uint64_t t = 0; t < n; t++)
            fill(rows[k] + t * pitch, lane->column[k].size, name_of(first + t, k));
    }
    CHECK(mc_lane_append(lane, n, sources) == 0);
}

static void expect_rows(const struct mc_lane *lane, uint64_t ticket, uint64_t n) {
    static uint8_t rows[3][LIMIT * 8];
    void *dests[] = {rows[0], rows[1], rows[2]};
    CHECK(mc_lane_read(lane, ticket, n, dests) == 0);
    for (uint64_t k = 0; k < lane->columns; k++)
        for (uint64_t t = 0, size = lane->column[k].size; t < n; t++)
            CHECK(whole(rows[k] + t * size, size, name_of(ticket + t, k)));
}

TEST(what_is_appended_is_read_in_any_number_of_rows) {
    struct mc_lane lane = make_lane(8, 1, one_word);
    append_rows(&lane, 1);
    append_rows(&lane, 5);
    CHECK(mc_lane_committed(&lane) == 6 && reserved_of(&lane) == 6);
    for (uint64_t t = 0; t < 6; t++)
        expect_rows(&lane, t, 6 - t);
    free_lane(&lane);
}

TEST(rows_of_odd_sizes_wrap_around_whole_and_touch_no_neighbour) {
    const uint64_t sizes[] = {24, 567, 3};
    struct mc_lane lane = make_lane(5, 3, sizes);
    for (uint64_t n = 1; n <= 5; n++)
        for (int again = 0; again < 5; again++) {
            append_rows(&lane, n);
            uint64_t c = (uint64_t)mc_lane_committed(&lane);
            expect_rows(&lane, c < 5 ? 0 : c - 5, c < 5 ? c : 5);
        }
    for (uint64_t row = 0; row < 5; row++)
        CHECK(lane.column[1].base[row * 568 + 567] == 0 && lane.column[2].base[row * 8 + 3] == 0);
    free_lane(&lane);
}

TEST(a_column_without_a_destination_is_passed_over) {
    const uint64_t sizes[] = {8, 16};
    struct mc_lane lane = make_lane(4, 2, sizes);
    uint8_t frame[16];
    void *dests[] = {NULL, frame};
    append_rows(&lane, 1);
    CHECK(mc_lane_read(&lane, 0, 1, dests) == 0 && whole(frame, sizeof frame, name_of(0, 1)));
    free_lane(&lane);
}

TEST(an_append_of_no_rows_or_more_than_the_lane_holds_changes_nothing) {
    struct mc_lane lane = make_lane(4, 1, one_word);
    uint64_t rows[5] = {0};
    const void *sources[] = {rows};
    CHECK(mc_lane_append(&lane, 0, sources) == -EINVAL);
    CHECK(mc_lane_append(&lane, 5, sources) == -EINVAL);
    CHECK(mc_lane_committed(&lane) == 0 && reserved_of(&lane) == 0);
    CHECK(mc_lane_append(&lane, 4, sources) == 0);
    free_lane(&lane);
}

TEST(a_row_that_a_device_writes_is_readable_once_it_is_finished) {
    const uint64_t size[] = {40};
    struct mc_lane lane = make_lane(2, 1, size);
    uint8_t source[40], row[40];
    for (int64_t ticket = 0; ticket < 5; ticket++) {
        uint8_t *slot = lane.column[0].base + ticket % 2 * 40;
        CHECK(mc_lane_begin(&lane) == ticket);
        CHECK(mc_lane_begin(&lane) == ticket); /* after a copy that failed */
        CHECK(mc_lane_committed(&lane) == ticket && reserved_of(&lane) == (uint64_t)ticket + 1);
        fill(source, sizeof source, name_of((uint64_t)ticket, 0));
        memcpy(slot, source, 24);
        memset(source, 0, 24); /* which are not copied */
        mc_lane_finish(&lane, ticket, source, 24);
        CHECK(mc_lane_read_newest(&lane, row) == ticket + 1);
        CHECK(whole(row, sizeof row, name_of((uint64_t)ticket, 0)));
    }
    set_counters(&lane, 5, 4);
    CHECK(mc_lane_begin(&lane) == -EUCLEAN);
    free_lane(&lane);
}

TEST(a_row_of_odd_size_above_a_mebibyte_is_copied_whole) {
    enum { SIZE = (1 << 20) + 5 };
    static uint8_t source[SIZE + 1], row[SIZE + 1], dest[SIZE + 1];
    fill(source, SIZE, 7);
    mc_copy_in(row, source, SIZE);
    mc_copy_out(dest, row, SIZE);
    CHECK(whole(dest, SIZE, 7) && row[SIZE] == 0 && dest[SIZE] == 0);
}

TEST(a_read_says_not_yet_and_lapped_and_invalid) {
    struct mc_lane lane = make_lane(4, 1, one_word);
    uint64_t rows[8];
    void *dests[] = {rows};
    CHECK(mc_lane_read(&lane, 0, 1, dests) == -EAGAIN);
    append_rows(&lane, 3);
    CHECK(mc_lane_read(&lane, 2, 2, dests) == -EAGAIN);
    append_rows(&lane, 3);
    CHECK(mc_lane_read(&lane, 1, 1, dests) == -ESTALE);
    expect_rows(&lane, 2, 4);
    CHECK(mc_lane_read(&lane, 2, 0, dests) == -EINVAL);
    CHECK(mc_lane_read(&lane, 2, 5, dests) == -EINVAL);
    CHECK(mc_lane_read(&lane, MC_TICKET_LIMIT, 1, dests) == -EINVAL);
    CHECK(mc_lane_read(&lane, UINT64_MAX, 1, dests) == -EINVAL);
    free_lane(&lane);
}

TEST(the_newest_row_is_numbered_from_one_and_stale_once_begun_over) {
    for (uint64_t capacity = 1; capacity <= 3; capacity++) {
        struct mc_lane lane = make_lane(capacity, 1, one_word);
        uint64_t first;
        uint8_t row[8];
        CHECK(mc_lane_read_newest(&lane, row) == 0);
        for (int64_t version = 1; version <= 7; version++) {
            append_rows(&lane, 1);
            CHECK(mc_lane_read_newest(&lane, row) == version &&
                  whole(row, sizeof row, name_of((uint64_t)version - 1, 0)));
        }
        CHECK(mc_lane_reserve(&lane, 1, &first) == 0 && first == 7);
        CHECK(mc_lane_read_newest(&lane, row) == (capacity == 1 ? -ESTALE : 7));
        free_lane(&lane);
    }
}

TEST(a_window_leaves_out_what_is_being_overwritten) {
    struct mc_lane lanes[3], first_lane = make_lanes(3, 4, 1, one_word);
    int64_t lo[3], hi[3];
    uint64_t first;
    for (uint64_t i = 0; i < 3; i++)
        mc_lanes_nth(&first_lane, i, &lanes[i]);
    append_rows(&lanes[1], 3);
    append_rows(&lanes[2], 4);
    append_rows(&lanes[2], 2);
    CHECK(mc_lane_reserve(&lanes[2], 2, &first) == 0);
    CHECK(mc_lanes_window(lanes, 3, lo, hi) == 0);
    CHECK(lo[0] == 0 && hi[0] == 0 && lo[1] == 0 && hi[1] == 3 && lo[2] == 4 && hi[2] == 6);
    CHECK(mc_lane_reserve(&lanes[2], 4, &first) == 0);
    CHECK(mc_lanes_window(lanes, 3, lo, hi) == 0 && lo[2] == 6 && hi[2] == 6);
    free_lane(&lanes[0]);
}

TEST(a_floor_raises_a_window_and_is_never_above_it) {
    int64_t lo[] = {3, 3, 3}, hi[] = {7, 7, 7}, floor[] = {0, 5, 7};
    CHECK(mc_windows_raise(3, floor, hi, lo) == 0 && lo[0] == 3 && lo[1] == 5 && lo[2] == 7);
    floor[1] = 8;
    CHECK(mc_windows_raise(3, floor, hi, lo) == -EUCLEAN);
}

TEST(validation_counts_the_rows_that_were_reserved_meanwhile) {
    struct mc_lane lanes[2] = {make_lanes(2, 4, 1, one_word)};
    const int64_t which[] = {0, 1, 1, 1}, lowest[] = {0, 0, 1, 2};
    uint8_t ok[4];
    uint64_t first;
    mc_lanes_nth(lanes, 1, &lanes[1]);
    append_rows(&lanes[0], 4);
    append_rows(&lanes[1], 4);
    CHECK(mc_lanes_validate(lanes, 2, which, lowest, ok) == 0 && ok[0] && ok[1]);
    CHECK(mc_lane_reserve(&lanes[1], 2, &first) == 0);
    CHECK(mc_lanes_validate(lanes, 4, which, lowest, ok) == 2);
    CHECK(ok[0] == 1 && ok[1] == 0 && ok[2] == 0 && ok[3] == 1);
    free_lane(&lanes[0]);
}

TEST(a_successor_keeps_what_a_killed_writer_reserved) {
    struct mc_lane lane = make_lane(4, 1, one_word);
    uint64_t first, row;
    void *dests[] = {&row};
    append_rows(&lane, 4);
    CHECK(mc_lane_reserve(&lane, 3, &first) == 0 && first == 4); /* and here it is killed */
    CHECK(mc_lane_check(&lane) == 0 && mc_lane_committed(&lane) == 4 && reserved_of(&lane) == 7);
    append_rows(&lane, 1);
    CHECK(mc_lane_committed(&lane) == 5 && reserved_of(&lane) == 7);
    CHECK(mc_lane_read(&lane, 2, 1, dests) == -ESTALE);
    expect_rows(&lane, 3, 2);
    append_rows(&lane, 3);
    CHECK(mc_lane_committed(&lane) == 8 && reserved_of(&lane) == 8);
    expect_rows(&lane, 4, 4);
    free_lane(&lane);
}

TEST(counters_that_contradict_one_another_quarantine_the_lane) {
    const uint64_t insane[][2] = {{5, 4},          {5, 10}, {MC_TICKET_LIMIT, MC_TICKET_LIMIT},
                                  {UINT64_MAX, 0}, {0, 5},  {0, UINT64_MAX}};
    struct mc_lane lane = make_lane(4, 1, one_word);
    uint64_t row = 0;
    const void *sources[] = {&row};
    for (size_t i = 0; i < sizeof insane / sizeof *insane; i++) {
        set_counters(&lane, insane[i][0], insane[i][1]);
        CHECK(mc_lane_check(&lane) == -EUCLEAN);
        CHECK(mc_lane_append(&lane, 1, sources) == -EUCLEAN);
        CHECK(committed_of(&lane) == insane[i][0] && reserved_of(&lane) == insane[i][1]);
    }
    set_counters(&lane, MC_TICKET_LIMIT - 1, MC_TICKET_LIMIT - 1);
    CHECK(mc_lane_check(&lane) == 0 && mc_lane_append(&lane, 1, sources) == -EUCLEAN);
    set_counters(&lane, 5, 9);
    CHECK(mc_lane_check(&lane) == 0 && mc_lane_append(&lane, 1, sources) == 0);
    free_lane(&lane);
}

TEST(a_durable_lanes_writer_pledges_what_was_not_promised) {
    struct mc_lane lane = make_lane(8, 1, one_word);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    free(lane.counters);
    lane.counters = aligned_alloc(page, page); /* as a segment's: the whole page is put on disk */
    CHECK(lane.counters);
    memset(lane.counters, 0, page);
    struct mc_counters *counters = mc_counters_of(&lane);
    uint64_t rows[8] = {0}, words[2] = {[MC_PROMISED] = 3, [MC_WATERMARK] = 2};
    const void *sources[] = {rows};
    lane.withheld = MC_TICKET_LIMIT;
    CHECK(mc_lane_append(&lane, 1, sources) == -EUCLEAN && committed_of(&lane) == 0); /* not durable */
    lane.promised = (uint8_t *)words;
    CHECK(mc_lane_append(&lane, 3, sources) == 0 && mc_load_pledged(counters) == 0);
    CHECK(mc_lane_append(&lane, 1, sources) == 0);
    CHECK(mc_load_pledged(counters) == 4 + 2 && mc_load_upheld(counters) == 6); /* as far as it is ahead */
    CHECK(mc_lane_append(&lane, 2, sources) == 0 && mc_load_pledged(counters) == 6);
    words[MC_PROMISED] = 20; /* a successor asks the flusher, who promised more meanwhile */
    lane.withheld = MC_TICKET_LIMIT;
    CHECK(mc_lane_append(&lane, 8, sources) == 0 && mc_load_pledged(counters) == 6);
    words[MC_WATERMARK] = MC_TICKET_LIMIT; /* damaged */
    CHECK(mc_lane_append(&lane, 8, sources) == 0 && mc_load_pledged(counters) == 22 + MC_MOST_PLEDGE);
    CHECK(committed_of(&lane) == 22);
    words[MC_PROMISED] = 0;
    words[MC_WATERMARK] = 22;
    atomic_store(&counters->room, 22 + MC_MOST_PLEDGE + 2); /* what a queue's reader left bounds the pledge */
    set_counters(&lane, 22 + MC_MOST_PLEDGE, 22 + MC_MOST_PLEDGE);
    CHECK(mc_lane_append(&lane, 1, sources) == 0 && mc_load_pledged(counters) == 22 + MC_MOST_PLEDGE + 2);
    CHECK(mc_lane_append(&lane, 2, sources) == 0); /* a damaged one stops no append */
    CHECK(mc_load_pledged(counters) == 22 + MC_MOST_PLEDGE + 3);
    free_lane(&lane);
}

TEST(a_window_of_tickets_out_of_range_is_refused) {
    struct mc_lane lane = make_lane(4, 1, one_word);
    int64_t lo, hi;
    set_counters(&lane, MC_TICKET_LIMIT, 4);
    CHECK(mc_lanes_window(&lane, 1, &lo, &hi) == -EUCLEAN && mc_lane_committed(&lane) == -EUCLEAN);
    set_counters(&lane, 4, UINT64_MAX);
    CHECK(mc_lanes_window(&lane, 1, &lo, &hi) == -EUCLEAN);
    free_lane(&lane);
}

TEST(words_hold_what_was_stored) {
    const int64_t values[] = {0, 1, -1, INT64_MIN, INT64_MAX};
    uint64_t words[3] = {7, 7, 7};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        mc_word_store((uint8_t *)words, 1, values[i]);
        CHECK(mc_word_load((const uint8_t *)words, 1) == values[i] && words[0] == 7 && words[2] == 7);
    }
}

TEST(words_apart_hold_what_was_stored) {
    const int64_t values[] = {INT64_MIN, -1};
    int64_t words[] = {7, 7, 7, 7};
    mc_words_store((uint8_t *)words, 2, 16, values);
    CHECK(words[0] == INT64_MIN && words[1] == 7 && words[2] == -1 && words[3] == 7);
}

TEST(words_are_added_modulo_2_to_the_64) {
    int64_t words[] = {INT64_MAX, INT64_MAX, 3};
    CHECK(mc_words_sum((const uint8_t *)words, 3, 8) == 1);
    mc_word_add((uint8_t *)words, 0, 1);
    CHECK(words[0] == INT64_MIN);
    mc_word_add((uint8_t *)words, 2, -4);
    CHECK(words[2] == -1);
}

TEST(locks_belong_to_open_files_and_end_with_them) {
    char path[64];
    int first = memfd_create("locks", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", first);
    int second = open(path, O_RDWR | O_CLOEXEC);
    CHECK(mc_lock_try(first, 1, 1) == 0 && mc_lock_try(first, 1, 1) == 0);
    CHECK(mc_lock_try(second, 1, 1) == -EAGAIN && mc_lock_try(second, 1, 0) == -EAGAIN);
    CHECK(mc_lock_try(second, 2, 1) == 0 && mc_lock_try(first, 2, 0) == -EAGAIN);
    CHECK(mc_lock_try(first, 0, 0) == 0 && mc_lock_try(second, 0, 0) == 0);
    CHECK(mc_lock_try(second, 0, 1) == -EAGAIN);
    close(first);
    CHECK(mc_lock_try(second, 0, 1) == 0 && mc_lock_try(second, 1, 1) == 0);
    close(second);
    CHECK(mc_lock_try(second, 0, 1) == -EBADF);
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

TEST(a_wait_ends_at_its_time_and_at_once_when_the_event_moved_on) {
    uint32_t event[MC_LINE / 4] = {0};
    uint8_t *e = (uint8_t *)event;
    int64_t start = nanoseconds();
    CHECK(mc_event_wait(e, mc_event_prepare(e, 1), 20000000) == -ETIMEDOUT);
    CHECK(nanoseconds() - start >= 20000000);
    uint32_t seen = mc_event_prepare(e, 1);
    mc_event_notify(e, 1);
    CHECK(event[0] == 0 && event[1] == seen + 1);
    CHECK(mc_event_wait(e, seen, INT64_C(60000000000)) == 0);
    mc_event_notify(e, 1); /* nobody waits */
    CHECK(event[1] == seen + 1);
}

TEST(the_one_who_delivers_the_last_of_what_is_wanted_wakes) {
    uint32_t event[MC_LINE / 4] = {0};
    uint8_t *e = (uint8_t *)event;
    uint32_t seen = mc_event_prepare(e, 10);
    mc_event_notify(e, 4);
    CHECK(event[0] == 6 && event[1] == seen);
    mc_event_prepare(e, 20); /* the least of several wishes stands */
    CHECK(event[0] == 6);
    mc_event_prepare(e, 3);
    CHECK(event[0] == 3);
    mc_event_notify(e, 5);
    CHECK(event[0] == 0 && event[1] == seen + 1);
    mc_event_prepare(e, 0); /* taken for 1 */
    CHECK(event[0] == 1);
}

enum { HANDS = 100000 };
static uint8_t event_line[MC_LINE] __attribute__((aligned(MC_LINE)));
static uint64_t ball[2];

/* Waits for the other's word to reach each number in turn; a wake-up lost would end in a time-out. */
static void *play(void *argument) {
    int me = argument != NULL;
    for (int64_t turn = 1; turn <= HANDS; turn++) {
        if (me == 0) {
            mc_word_store((uint8_t *)ball, 0, turn);
            mc_event_notify(event_line, 1);
        }
        for (;;) {
            uint32_t seen = mc_event_prepare(event_line, 1);
            if (mc_word_load((uint8_t *)ball, !me) >= turn)
                break;
            int code = mc_event_wait(event_line, seen, INT64_C(10000000000));
            CHECK(code == 0 || code == -EINTR);
        }
        if (me == 1) {
            mc_word_store((uint8_t *)ball, 1, turn);
            mc_event_notify(event_line, 1);
        }
    }
    return NULL;
}

TEST(no_wake_up_is_lost_between_two_threads) {
    pthread_t other;
    CHECK(pthread_create(&other, NULL, play, event_line) == 0);
    play(NULL);
    pthread_join(other, NULL);
}

enum { LAPS = 4000000 };

static void *lap(void *lane) {
    for (int i = 0; i < LAPS; i++)
        append_rows(lane, 1);
    return NULL;
}

TEST(a_lane_that_another_thread_laps_is_not_quarantined) {
    struct mc_lane lane = make_lane(1, 1, one_word);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, lap, &lane) == 0);
    while (mc_lane_committed(&lane) < LAPS)
        CHECK(mc_lane_check(&lane) == 0);
    pthread_join(other, NULL);
    free_lane(&lane);
}

int main(void) { return run_tests(); }
