/* marlcore's C core: every declaration, for the C compiler and for cffi alike.
 *
 * The core knows nothing of Python and allocates nothing: it works on memory that the caller maps and owns.
 * Results are 0 or a count, or -errno; -EAGAIN (no row yet) and -ESTALE (lapped) are ordinary results.
 *
 * A lane in shared memory:
 *
 *   counters, one 128-byte line           columns, capacity rows each
 *   +-----------+----------+---------+    +-------+-------+-----+---------------+
 *   | committed | reserved | padding |    | row 0 | row 1 | ... | row capacity-1|   row = ticket mod capacity
 *   +-----------+----------+---------+    +-------+-------+-----+---------------+
 *   written only by the lane's writer     written only by the lane's writer
 *
 *   event, one 128-byte line: readers wait for rows on one event, writers wait for room on another
 *   +--------+-------+---------+   wanted: how much must come before waiters are woken; waiters lower it to
 *   | wanted | event | padding |   their amount, writers by the amount they deliver; 0 without waiters
 *   +--------+-------+---------+   event: the writer that brings wanted to 0 adds 1
 */
#ifndef MC_API_H
#define MC_API_H

#include <stdint.h>

enum { MC_LINE = 128, MC_MAX_COLUMNS = 16 };

/* ---- lanes: fixed-size rows, one writer, any number of readers ---- */

struct mc_column {
    uint8_t *base;   /* the lane's first row, 8-byte aligned */
    uint64_t size;   /* bytes of a row to copy */
    uint64_t stride; /* bytes from row to row: size rounded up to 8 */
    uint64_t every;  /* tickets that share a row: 1, or more for a column at intervals */
};

struct mc_lane {       /* private to a process: the lane's mapping */
    uint64_t capacity; /* rows */
    uint64_t withheld; /* the highest tickets, which no append may take before they are promised; or 0 */
    uint8_t *promised; /* of a durable lane: two words of its flusher; or NULL */
    uint8_t *counters;
    uint8_t *event;
    uint64_t columns;
    struct mc_column column[MC_MAX_COLUMNS];
};

/* The words of `promised`, both on disk: tickets below the first may be overwritten, rows below the second
 * are whole. */
enum { MC_PROMISED, MC_WATERMARK };

/* Any process. 0, or -EUCLEAN if the counters contradict each other. */
int mc_lane_check(const struct mc_lane *lane);
/* Any process. Rows committed since the lane's creation, or -EUCLEAN. */
int64_t mc_lane_committed(const struct mc_lane *lane);
/* The holder of the lane's lock. Appends n rows; sources[k] holds column k's n rows consecutively
 * (spaced by the column's size; by its stride for column 0). 0, -EINVAL, -EUCLEAN. */
int mc_lane_append(struct mc_lane *lane, uint64_t n, const void *const *sources);
/* The holder of the lane's lock. Reserves the next row of a lane of one column, for a device to write: its
 * ticket; errors as above. Without mc_lane_finish nothing was appended; the next append takes the row again.
 */
int64_t mc_lane_begin(struct mc_lane *lane);
/* The same holder, when the device has written the row's first `from` bytes. Copies the others from source,
 * which holds the row, and makes the row readable. */
void mc_lane_finish(struct mc_lane *lane, int64_t ticket, const void *source, uint64_t from);
/* Any process. Copies n rows from ticket on into dests (a NULL dest is skipped). 0, -EAGAIN, -ESTALE. */
int mc_lane_read(const struct mc_lane *lane, uint64_t ticket, uint64_t n, void *const *dests);
/* Any process. Copies column 0 of the newest row: its ticket + 1, 0 for an empty lane, -ESTALE if lapped. */
int64_t mc_lane_read_newest(const struct mc_lane *lane, void *dest);

/* ---- adjacent lanes: of one shape, identified by the first; lane i's counters are i lines after the
 * first's, and in each column its rows are i lanes' rows after the first's ---- */

/* Sets `lane` to lane i. */
void mc_lanes_nth(const struct mc_lane *lanes, uint64_t i, struct mc_lane *lane);
/* Any process. The range [lo, hi) of whole tickets of each of n lanes. 0, or -EUCLEAN. */
int mc_lanes_window(const struct mc_lane *lanes, uint64_t n, int64_t *lo, int64_t *hi);
/* Any process. Rows committed to each of n lanes, and the first word of column 0 in the newest of them, or 0;
 * also while an append of the whole lane overwrites that row, or its writer was killed inside. 0, -EUCLEAN,
 * -ESTALE if a lane was lapped at every attempt. */
int mc_lanes_newest(const struct mc_lane *lanes, uint64_t n, int64_t *committed, int64_t *words);
/* Private memory. Raises lo of each of n lanes to its floor. 0, or -EUCLEAN if a floor is above hi. */
int mc_windows_raise(uint64_t n, const int64_t *floor, const int64_t *hi, int64_t *lo);
/* Any process, after copying. ok[i] = ticket lowest[i] of lane[i] is still whole; the number lapped. */
int64_t mc_lanes_validate(const struct mc_lane *lanes, uint64_t n, const int64_t *lane, const int64_t *lowest,
                          uint8_t *ok);

/* ---- transitions: the meaning of a replay lane's rows ---- */

enum { MC_TERMINATED = 1, MC_TRUNCATED = 2, MC_BOUNDARY = 4 };

struct mc_row {       /* the head of a record, which is column 0 */
    uint32_t ordinal; /* transitions written to the lane before this row, modulo 2^32 */
    uint32_t place;   /* low 24 bits: earlier rows of the same episode; 0 begins an episode, and after
                         2^24 - 1 the count continues at about half of it; high 8 bits: see the enum */
    uint32_t policy_version;
    float reward;
};

struct mc_writer { /* private to one process */
    struct mc_lane lane;
    uint8_t *records; /* the caller's staging: the transition's record, then the boundary row's */
    const void *frames[MC_MAX_COLUMNS];       /* the transition's columns 1.., also those at intervals */
    const void *final_frames[MC_MAX_COLUMNS]; /* the boundary row's columns 1.. */
    /* A writer of a shared lane takes this lock for each append; offset 0: the lane has one writer. */
    int64_t lock_offset;
    int64_t lock_wait_ns;
    int lock_fd;
    uint32_t ordinal;
    uint32_t policy_version;
    uint32_t age;
    int closed;   /* set by any thread, it ends no call in progress */
    uint64_t row; /* in a vector: the number of its row in the present call */
};

/* The lane's holder: continues after the last writer; its rows begin a new episode. 0, -EUCLEAN. */
int mc_writer_open(struct mc_writer *writer);
/* The lane's writer. Appends the staged transition, and the boundary row if flags has MC_BOUNDARY.
 * The transition's ticket, -ESHUTDOWN if closed, -EDOM if the reward is not finite, -EUCLEAN; for a shared
 * lane also -EAGAIN if others held it for about lock_wait_ns, -EINTR. Every row of a shared lane begins an
 * episode. */
int64_t mc_writer_add(struct mc_writer *writer, int flags);
/* The lane's writer. Appends n rows, all or none; ends holds n bytes terminated, n truncated, n boundary,
 * each 0 or 1. The first ticket; -EPROTO if boundaries is set and a truncated row lacks its boundary row;
 * or an error as above. */
int64_t mc_writer_add_rows(struct mc_writer *writer, uint64_t n, uint8_t *records, const void *const *frames,
                           const uint8_t *ends, int boundaries);
struct mc_vector {             /* private to one process: the writers of several lanes, none of them shared */
    struct mc_writer *writers; /* whose staging each call sets */
    uint64_t count;            /* 0 once closed */
    uint8_t *records;          /* the caller's staging: each row's record, then its boundary row's */
    const void *frames[MC_MAX_COLUMNS];       /* columns 1.. of a call's rows, each column consecutive */
    const void *final_frames[MC_MAX_COLUMNS]; /* of the boundary rows; NULL: what the writer has there */
    uint32_t policy_version;
    int final_needed; /* whether a truncated row needs a boundary row */
};

/* The lanes' writer. Whether mc_vector_add would append these rows; writes nothing. 0, or an error as below.
 */
int mc_vector_check(struct mc_vector *vector, uint64_t n, const int64_t *which, const uint8_t *ends,
                    int finals);
/* The lanes' writer. Appends row i of n to the lane of writers[which[i]], with a boundary row if it ended and
 * finals is set; ends holds n bytes terminated, n truncated, n left out, each 0 or 1. A row that is left out
 * has the ticket -1, and the next row of its lane begins an episode. Every row is checked before the first
 * write; a writer killed in the call leaves whole rows in some lanes and none in the others. 0, -ESHUTDOWN if
 * closed, -EINVAL if a writer does not exist, has two rows or too small a lane, -EDOM if a reward is not
 * finite, -EPROTO if a truncated row lacks its boundary row, -EUCLEAN. */
int mc_vector_add(struct mc_vector *vector, uint64_t n, const int64_t *which, const uint8_t *ends, int finals,
                  int64_t *tickets);
/* Any process. Transitions that the lane holds, without boundary rows. -EUCLEAN, -ESTALE as below. */
int64_t mc_lane_transitions(const struct mc_lane *lane);
/* Any process. The same for n lanes together. */
int64_t mc_lanes_transitions(const struct mc_lane *lanes, uint64_t n);
/* Any process. Transitions ever written to n lanes. Exact up to 2^32 boundary rows per lane. -EUCLEAN,
 * -ESTALE if a lane was lapped at every attempt. */
int64_t mc_lanes_inserted(const struct mc_lane *lanes, uint64_t n);

/* ---- raw rows: from the lanes of one segment to those of another with the same columns; see rows.c ---- */

struct mc_span { /* consecutive rows of a lane, in a message */
    int64_t lane;
    int64_t after; /* the ticket before which its sender has sent or lost every row */
    int64_t first; /* the first row's ticket */
    int64_t rows;
};
struct mc_part { /* consecutive rows of a span, on their way into a lane */
    int64_t lane;
    int64_t offset; /* of the span's bytes */
    int64_t rows;   /* of the span */
    int64_t skip;   /* the span's first rows, which are not taken */
    int64_t take;
    int64_t seam; /* whether the first row taken does not follow the lane's last one */
};

/* Sets the offset of each of n spans that follow one another. Their bytes together, or -EINVAL if they are
 * more than room. */
int64_t mc_spans_place(const struct mc_lane *lanes, uint64_t n, const struct mc_span *spans, uint64_t room,
                       int64_t *offsets);
/* Any process. Copies the rows of n spans into dest, one span after another; a span that was lapped has no
 * rows then. The bytes copied, or -EINVAL, -EAGAIN if rows are not committed. */
int64_t mc_spans_read(const struct mc_lane *lanes, uint64_t n, struct mc_span *spans, uint8_t *dest);
/* The holder of the lanes' locks, none of them shared. Appends the rows of n parts of the spans in source,
 * each part whole. They keep their values and flags; their places in episodes count on from the lane's last
 * row. 0, -EINVAL if more rows are taken than a lane has, -EUCLEAN; parts before the one at fault are
 * appended. */
int mc_parts_append(const struct mc_lane *lanes, uint64_t n, const struct mc_part *parts,
                    const uint8_t *source);

/* ---- events: waiting for a writer without spinning ---- */

/* A waiter: announces its amount, at least 1. Then check how much is still missing: if less than announced,
 * announce again; if nothing, continue; otherwise call mc_event_wait with the returned value. */
uint32_t mc_event_prepare(uint8_t *event, uint32_t amount);
/* A waiter: sleeps until the event differs from seen, or the timeout. 0, -ETIMEDOUT, -EINTR. */
int mc_event_wait(uint8_t *event, uint32_t seen, int64_t timeout_ns);
/* A writer, after delivering an amount. Makes a system call only if it completes a waiter's amount. */
void mc_event_notify(uint8_t *event, uint32_t amount);

/* ---- words: one 64-bit word, one writer, any number of readers ---- */

int64_t mc_word_load(const uint8_t *words, uint64_t i);
void mc_word_store(uint8_t *words, uint64_t i, int64_t value);
/* The word's only writer. Adds to it, modulo 2^64. */
void mc_word_add(uint8_t *words, uint64_t i, int64_t more);
/* The sum of n words, stride bytes apart, modulo 2^64. */
int64_t mc_words_sum(const uint8_t *words, uint64_t n, uint64_t stride);
/* The words' only writer. Stores n words, stride bytes apart, one after another. */
void mc_words_store(uint8_t *words, uint64_t n, uint64_t stride, const int64_t *values);

/* ---- files: each open descriptor belongs to a struct that exists before it ---- */

struct mc_file {     /* private to a process; one thread opens and names it */
    int fd;          /* -1: none */
    int owner;       /* the process whose close removes the name; 0: the name stays */
    uint64_t length; /* of name, including its 0 */
    char name[];
};

/* Opens a file, close-on-exec. 0, -errno. */
int mc_file_open(struct mc_file *file, const char *path, int flags, unsigned mode);
/* Gives a nameless open file the name in file->name; its close removes the name. 0, -errno. */
int mc_file_link(struct mc_file *file);
/* Any thread. Closes the file, if open. 0, -errno if its name could not be removed. */
int mc_file_close(struct mc_file *file);
/* Allocates every byte of a file, without writing to it. 0, -errno. */
int mc_file_allocate(int fd, int64_t nbytes);
/* The magic number of the file's file system, see statfs(2); -errno. */
int64_t mc_file_system(int fd);

/* ---- mappings: each belongs to a struct that exists before it ---- */

struct mc_mapping {   /* private to a process; one thread opens it */
    uint8_t *address; /* NULL: none */
    uint64_t nbytes;
};

/* Maps the first nbytes of a file, shared; in the place of what is mapped, if anything is. 0, -errno. */
int mc_mapping_open(struct mc_mapping *mapping, int fd, uint64_t nbytes, int writable);
/* Any thread. Unmaps the memory, if mapped. */
void mc_mapping_close(struct mc_mapping *mapping);
/* In a forked child, with the file's descriptor. Puts a private copy, made as it is written to, in the
 * mapping's place, so that the child neither holds the file's locks nor changes the file. 0, -errno. */
int mc_mapping_detach(struct mc_mapping *mapping, int fd);

/* ---- forks: what a process calls around each fork of itself ---- */

/* Before a fork. Counts it, and keeps this thread's signals back, in the child too, until mc_fork_end. */
void mc_fork_begin(void);
/* In the child, first: it continues the count from its own fork's number, which no sibling has. */
void mc_fork_child(void);
/* The same thread, in the parent and in the child. */
void mc_fork_end(void);
/* The forks of this process up to now, with those of its parent up to its own. */
int64_t mc_forks(void);

/* ---- locks: the kernel releases them when their holder dies ---- */

/* Locks one byte for an open file description. 0, -EAGAIN if another one holds it, -errno. */
int mc_lock_try(int fd, int64_t offset, int exclusive);
/* Locks it exclusively, within about timeout_ns. 0, -EAGAIN at the timeout, -EINTR, -errno. */
int mc_lock_wait(int fd, int64_t offset, int64_t timeout_ns);
void mc_lock_drop(int fd, int64_t offset);
/* 1 if another open file description has locked the byte, otherwise 0; -errno. */
int mc_lock_held(int fd, int64_t offset);

/* ---- small networks: fully connected layers of float32; see dense.c. A matrix that is called padded has
 * rows that reach to a multiple of MC_PAD floats; what lies beyond its columns may have any value ---- */

enum { MC_PAD = 16, MC_LINEAR = 0, MC_RELU = 1, MC_TANH = 2, MC_BASELINE = 0, MC_AVX2 = 1, MC_AVX512 = 2 };

struct mc_layer { /* output = activation(x times weight, plus bias), for x [rows, inputs] */
    int64_t inputs, outputs;
    int activation;
    int inputs_first; /* whether weight is [inputs, outputs]; otherwise [outputs, inputs], as torch has it */
    const float *weight;    /* contiguous */
    const float *bias;      /* [outputs] */
    float *forward;         /* padded [inputs, outputs]; the weight itself if that has this form */
    float *backward;        /* padded [outputs, inputs], likewise; NULL: a layer without mc_layers_backward */
    float *row;             /* padded [outputs]: the bias */
    float *output;          /* padded [rows, outputs] */
    float *gradient;        /* padded [rows, outputs]: of the sums before the activation */
    float *weight_gradient; /* as weight */
    float *bias_gradient;
};

/* Uses the kernels for this level of x86-64 processors, or the highest that this one has; it returns the
 * level used. At the start that is the highest; on other processors the only one, MC_BASELINE. */
int mc_dense_use(int level);
/* The level in use. */
int mc_dense_level(void);
/* Copies each layer's weight and bias into forward, backward and row, for all later calls. The first layer's
 * backward is copied by mc_layers_backward, where x_gradient asks for it. */
void mc_layers_pack(const struct mc_layer *layers, int64_t count);
/* Computes each layer's output, the first one's from x [rows, inputs], whose rows are x_row floats apart. */
void mc_layers_forward(const struct mc_layer *layers, int64_t count, int64_t rows, const float *x,
                       int64_t x_row);
/* After mc_layers_forward of x, whose last row is readable to a multiple of MC_PAD floats: from the gradient
 * of the output, which the caller put into the last layer's `gradient`, sets the gradients of each layer's
 * weight and bias, if `trains`, and padded x_gradient, if given. */
void mc_layers_backward(const struct mc_layer *layers, int64_t count, int64_t rows, const float *x,
                        int64_t x_row, float *x_gradient, int trains);

struct mc_tensor { /* contiguous; the last four as weight */
    int64_t size;
    float *weight, *gradient, *mean, *square, *target;
};
struct mc_descent {
    const struct mc_tensor *tensors;
    int64_t count;
    double rate, beta1, beta2, epsilon; /* of Adam */
    float *number;                      /* of the last step */
    double most;                        /* norm of the gradient */
    double share; /* of the way that targets move to their weights; 1 copies exactly, 0 moves none */
};

/* Scales the gradient of all tensors together to the norm `most` if it is longer, makes Adam's next step, and
 * moves the targets. The norm before that. */
double mc_descend(const struct mc_descent *descent);

/* ---- updates of Q-learning: losses, gradients, and descent; see q_learning.c ---- */

struct mc_chain {
    const struct mc_layer *layers;
    int64_t count;
};

struct mc_values_network { /* head(torso(x) embedding(cosines)), or head(x); a torso may have no layers */
    struct mc_chain torso, embedding, head;
};

struct mc_q_learning { /* DQN, CQL or IQN; all arrays, those of layers too, have enough rows */
    int64_t actions;
    int dueling;
    int twice; /* the next action is the best one of the network itself, not of its target */
    double reward_scale;
    double alpha; /* the weight of CQL's penalty */
    double kappa; /* errors beyond it count linearly */
    struct mc_values_network online, target;
    const struct mc_descent *descent;
    int64_t rows;           /* of a batch: */
    const float *x, *after; /* [rows, inputs], as for mc_layers_backward: now and after */
    int64_t x_row;
    const int64_t *action;                   /* [rows] */
    const uint8_t *allowed, *allowed_after;  /* [rows, actions] now and then; NULL: all */
    const float *reward, *discount, *weight; /* [rows] */
    int64_t predicted, sampled, midpoints; /* fractions for the prediction, the target and the choice; or 1 */
    const float *fractions, *of_samples;   /* [rows, predicted] and [rows, sampled]; without embedding NULL */
    const float *shared;                   /* [midpoints] */
    int64_t features, cosines;
    float *cosine;                      /* scratch: padded [rows times the largest of the three, cosines] */
    float *product, *slope;             /* likewise, features */
    float *line;                        /* [3 predicted] */
    int64_t *best;                      /* [rows] */
    float *error;                       /* result [rows]: the priorities */
    double loss, penalty, q_mean, norm; /* results; the loss includes the penalty, q_mean is in units of the
                                           reward, the norm is that of the gradient */
};

/* Makes an update. 0; -EINVAL, and nothing changed: an action's number is none of the actions'. */
int mc_q_update(struct mc_q_learning *q);

/* ---- choices of actions, by the outputs of a network and by numbers in [0, 1), multiples of 2^-53; see
 * draws.c. A mask `allowed` [rows, actions] is NULL if every action is allowed ---- */

struct mc_begun {         /* a network whose layers `rest` are left to compute, by x [rows, x_row] */
    struct mc_chain rest; /* without layers, x has the outputs */
    int64_t rows;
    const float *x;
    int64_t x_row;
};

struct mc_uniform { /* a generator of such numbers */
    double (*next)(void *state);
    void *state;
};

struct mc_choices { /* arrays for calls to use, and the results */
    int64_t actions;
    int dueling;         /* of the outputs, see mc_q_learning */
    double *draws;       /* [2, rows] */
    double *epsilon;     /* [rows] */
    int64_t *action;     /* result [rows] */
    float *taken, *best; /* results [rows]: the values of the chosen actions and of the best ones; or NULL */
};

/* Replaces the action of each row that explores by a random one among those allowed, and returns how many do.
 * draws [2, rows]: a row explores if the first is less than its epsilon; the second picks the action. */
int64_t mc_explore(int64_t rows, int64_t actions, const double *draws, const double *epsilon,
                   const uint8_t *allowed, int64_t *action);
/* Chooses the best actions or, with uniform, those of mc_explore by one epsilon or the rows' own in
 * `choices`. */
void mc_act_by_values(const struct mc_choices *choices, const struct mc_begun *network,
                      const uint8_t *allowed, const struct mc_uniform *uniform, double epsilon, int own);
/* Draws one value of each part in each row, part by part, with the logarithm of their probability. outputs
 * have logarithms of probabilities, up to a constant for each part, of the parts' values one after another.
 * allowed [rows, values], or NULL; a row without an allowed value draws from all alike. drawn [rows, parts],
 * log_prob [rows]. */
void mc_act_by_categories(const struct mc_begun *network, int64_t parts, const int64_t *sizes,
                          const uint8_t *allowed, const struct mc_uniform *uniform, int64_t *drawn,
                          float *log_prob);

/* ---- PPO's objective; see clipped.c ---- */

enum { MC_MOST_LOG_RATIO = 80 }; /* an infinite ratio would give NaN as a slope */
/* Means over rows: the loss, its parts, the estimated divergence, the share of clipped ratios. */
enum { MC_LOSS, MC_POLICY_LOSS, MC_VALUE_LOSS, MC_ENTROPY, MC_KL, MC_BEYOND, MC_TERMS };

/* A batch, and the networks' results for some of its rows. A policy with sizes is categorical, one with
 * log_std Gaussian; without both, its outputs are the logits of bits. */
struct mc_clipped {
    int64_t outputs, components; /* of the policy, and of an action */
    const int64_t *sizes;        /* [components], together the outputs; or NULL */
    const float *log_std;        /* [outputs], or NULL; likewise its gradient */
    float *log_std_gradient;
    float *slopes;                   /* [2 outputs], for calls to use */
    const int64_t *action;           /* [batch, components]: values from 0 on, or bits */
    const float *drawn;              /* [batch, components]: a Gaussian's actions */
    const uint8_t *allowed;          /* [batch, outputs]: of a categorical policy; or NULL */
    const float *before, *value;     /* [batch]: log-probability and value before the steps */
    const float *advantage, *target; /* [batch] */
    double clip, clip_value;         /* clip_value: infinite for none */
    double value_coefficient, bonus;
    const float *output, *prediction; /* padded [rows, outputs] and padded [rows, 1]; likewise gradients */
    float *output_gradient, *prediction_gradient;
};

/* Sets the log-probabilities of all rows' actions, where `output` is of the whole batch. */
void mc_clipped_judge(const struct mc_clipped *batch, int64_t rows, float *log_prob);

/* Sets the gradients of a minibatch, whose rows have these numbers in the batch, and means [MC_TERMS]. */
void mc_clipped_slopes(const struct mc_clipped *batch, int64_t rows, const int64_t *numbers, double *means);

#endif
