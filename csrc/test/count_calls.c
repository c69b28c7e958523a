/* The core's hot calls, one after another: each is named on stdout, and stands between two stops (SIGSTOP),
 * so that a tracer can count its instructions. Rows are those of 4 floats: 40 bytes with the action. */
#include "count.h"

enum { RECORD = 40, FRAME = 84 * 84, ROWS = 64, DRAWN = 256, READ = 128, WEIGHTS = 65536, CAPACITY = 1024 };

static uint8_t records[2 * ROWS * RECORD], frame[FRAME], ends[3 * ROWS], weights[WEIGHTS],
    rows[READ * RECORD], ok[DRAWN];
static int64_t which[ROWS], tickets[ROWS], lo[ROWS], hi[ROWS], lanes_of[DRAWN], lowest[DRAWN];
static struct mc_writer writers[ROWS];

static struct mc_writer open_writer(struct mc_lane lane) {
    struct mc_writer writer = {
        .lane = lane, .records = records, .frames[1] = frame, .final_frames[1] = frame};
    CHECK(mc_writer_open(&writer) == 0);
    return writer;
}

static void count_adds(void) {
    const uint64_t sizes[] = {RECORD, FRAME};
    struct mc_lane vectors = make_lane(CAPACITY, 1, sizes), images = make_lane(CAPACITY, 2, sizes);
    struct mc_writer vector = open_writer(vectors), image = open_writer(images);
    void *dests[MC_MAX_COLUMNS] = {rows};
    COUNT("open a writer", mc_writer_open(&vector));
    COUNT("add, 4 floats", mc_writer_add(&vector, 0));
    COUNT("add, 84 x 84 bytes", mc_writer_add(&image, 0));
    COUNT("add a batch of 64", mc_writer_add_rows(&vector, ROWS, records, vector.frames, ends, 0));
    while (committed_of(&vectors) < CAPACITY)
        CHECK(mc_writer_add(&vector, 0) >= 0);
    COUNT("read 128 rows in order", mc_lane_read(&vectors, CAPACITY - READ, READ, dests));
    free_lane(&vectors);
    free_lane(&images);
}

static void count_lanes(void) {
    const uint64_t sizes[] = {RECORD};
    struct mc_lane lanes = make_lanes(ROWS, CAPACITY, 1, sizes);
    for (uint64_t i = 0; i < ROWS; i++) {
        struct mc_lane lane;
        mc_lanes_nth(&lanes, i, &lane);
        writers[i] = open_writer(lane);
        which[i] = (int64_t)i;
    }
    for (uint64_t i = 0; i < DRAWN; i++)
        lanes_of[i] = (int64_t)(i % ROWS);
    struct mc_vector vector = {.writers = writers, .count = ROWS, .records = records};
    COUNT("add to 64 lanes at once", mc_vector_add(&vector, ROWS, which, ends, 0, tickets));
    COUNT("windows of 64 lanes", mc_lanes_window(&lanes, ROWS, lo, hi));
    COUNT("validate 256 rows", mc_lanes_validate(&lanes, DRAWN, lanes_of, lowest, ok));
    free_lane(&lanes);
}

static void count_weights(void) {
    const uint64_t sizes[] = {WEIGHTS};
    const void *sources[] = {weights};
    struct mc_lane lane = make_lane(2, 1, sizes);
    COUNT("publish 64 KB", mc_lane_append(&lane, 1, sources));
    COUNT("pull 64 KB", mc_lane_read_newest(&lane, weights));
    free_lane(&lane);
}

int main(void) {
    count_adds();
    count_lanes();
    count_weights();
    return 0;
}
