/* The load generator: a client with N requests outstanding and its workers, as threads of one process.
 *
 * It is C so that the broker, not the generator, is what is measured.  libzmq is the one that pyzmq brought
 * along, loaded by path; the few functions and constants of it that are needed are declared here, because
 * its header is not installed with it.  A dialect is a row in a table: how a client asks, how it knows its
 * answer, and what a worker says.  Every answer is checked against the request it belongs to.
 *
 *   load LIBZMQ KIND FRONTEND BACKEND SIZE WINDOW SECONDS WARMUP CREDIT WORKERS
 *
 * KIND is mdr, emqp, plain (anything that forwards: zmq_proxy), or direct (no broker: the worker binds).
 * Prints one line of JSON; exit status 1 and a line on stderr if anything was not as it should be.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEALER = 5, LINGER = 17, RCVTIMEO = 27, SNDTIMEO = 28, SNDMORE = 2 };
/* A worker looks this often whether the run is over; nobody waits longer than this for an answer. */
enum { LOOK_MS = 50, PATIENCE_MS = 10000 };
enum { FILL = 'x', MAX_FRAMES = 8, MAX_WORKERS = 256 };

static void *(*zmq_ctx_new)(void);
static int (*zmq_ctx_term)(void *);
static void *(*zmq_socket)(void *, int);
static int (*zmq_close)(void *);
static int (*zmq_connect)(void *, const char *);
static int (*zmq_bind)(void *, const char *);
static int (*zmq_send)(void *, const void *, size_t, int);
/* zmq.h promises 64 bytes, aligned like a pointer. */
typedef union {
    unsigned char space[64];
    void *alignment;
} Part;

static int (*zmq_msg_init)(Part *);
static int (*zmq_msg_recv)(Part *, void *, int);
static int (*zmq_msg_send)(Part *, void *, int);
static int (*zmq_msg_more)(Part *);
static void *(*zmq_msg_data)(Part *);
static int (*zmq_setsockopt)(void *, int, const void *, size_t);

static void *context;
static const char *frontend, *backend;
static size_t size;
static int credit, binds;
static atomic_int over;

/* The frames stay where libzmq put them: copying them would cost as much as the rest. */
typedef struct {
    int count;
    int length[MAX_FRAMES];
    char *data[MAX_FRAMES];
    Part part[MAX_FRAMES];
} Message;

typedef struct {
    const char *name;
    void (*ask)(void *socket, const char *id, int id_length, const char *body);
    int (*is_answer)(const Message *); /* 1: it is, 0: something else that may come, -1: a mistake */
    void (*greet)(void *socket);       /* a worker's first words */
    void (*work)(void *socket, Message *);
    void (*leave)(void *socket); /* its last */
} Dialect;

static const Dialect *dialect;

static void die(const char *why) {
    fprintf(stderr, "load: %s\n", why);
    _Exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void put(void *socket, const void *data, size_t length, int flags) {
    if (zmq_send(socket, data, length, flags) < 0) die("a message could not be sent in time");
}

/* Send a frame that was received, as it is. */
static void pass(void *socket, Message *m, int at, int flags) {
    if (zmq_msg_send(&m->part[at], socket, flags) < 0) die("a message could not be sent in time");
}

#define MORE(socket, text) put(socket, text, sizeof(text) - 1, SNDMORE)
#define LAST(socket, text) put(socket, text, sizeof(text) - 1, 0)

static int is(const Message *m, int at, const char *text) {
    return at < m->count && m->length[at] == (int)strlen(text) && !memcmp(m->data[at], text, m->length[at]);
}

/* A whole message; 0 if none came in time. */
static int receive(void *socket, Message *m) {
    int more = 1;
    for (m->count = 0; more; m->count++) {
        if (m->count == MAX_FRAMES) die("a message has too many frames");
        Part *part = &m->part[m->count];
        int length = zmq_msg_recv(part, socket, 0);
        if (length < 0) {
            if (m->count) die("a message was cut short");
            return 0;
        }
        m->length[m->count] = length;
        m->data[m->count] = zmq_msg_data(part);
        more = zmq_msg_more(part);
    }
    return 1;
}

/* The body of an answer is that of its request: the id, filled up. */
static int belongs(const Message *m, int body, int id) {
    int length = m->length[id];
    if (m->length[body] != (int)size || length >= (int)size) return -1;
    return !memcmp(m->data[body], m->data[id], length) && m->data[body][length] == FILL ? 1 : -1;
}

/* -- the Majordomo request-id draft ---------------------------------------------------------------- */

static void mdr_ask(void *s, const char *id, int id_length, const char *body) {
    MORE(s, "MDRC01");
    MORE(s, "\x01");
    MORE(s, "echo");
    put(s, id, id_length, SNDMORE);
    put(s, body, size, 0);
}

static int mdr_is_answer(const Message *m) {
    return m->count == 5 && is(m, 0, "MDRC01") && is(m, 1, "\x03") ? belongs(m, 4, 3) : -1;
}

static void mdr_greet(void *s) {
    char text[16];
    MORE(s, "MDRW01");
    MORE(s, "\x01");
    put(s, "echo", 4, credit > 1 ? SNDMORE : 0);
    if (credit > 1) put(s, text, snprintf(text, sizeof text, "%d", credit), 0);
}

static void mdr_work(void *s, Message *m) {
    if (m->count != 6 || !is(m, 1, "\x02")) return;
    m->data[1][0] = 4;
    for (int i = 0; i < 6; i++) pass(s, m, i, i < 5 ? SNDMORE : 0);
}

static void mdr_leave(void *s) {
    MORE(s, "MDRW01");
    LAST(s, "\x06");
}

/* -- eMQP ------------------------------------------------------------------------------------------ */

static void emqp_ask(void *s, const char *id, int id_length, const char *body) {
    MORE(s, "eMQP/1.0");
    MORE(s, "REQUEST");
    put(s, id, id_length, SNDMORE);
    MORE(s, "echo");
    MORE(s, "reply-requested");
    put(s, body, size, 0);
}

static int emqp_is_answer(const Message *m) {
    if (!is(m, 0, "eMQP/1.0") || !is(m, 1, "REPLY")) return -1;
    /* The receipt has one frame less than the result. */
    return m->count == 4 ? 0 : m->count == 5 ? belongs(m, 3, 4) : -1;
}

static void emqp_say(void *s, const char *word, int flags) {
    static _Thread_local long number;
    char id[32];
    int length = snprintf(id, sizeof id, "w%ld", ++number);
    MORE(s, "eMQP/1.0");
    put(s, word, strlen(word), SNDMORE);
    put(s, id, length, flags);
}

static void emqp_greet(void *s) {
    emqp_say(s, "INFORM", SNDMORE);
    MORE(s, "[[10, \"echo\"]]");
    LAST(s, "worker");
}

static void emqp_work(void *s, Message *m) {
    if (m->count == 4 && is(m, 1, "ACK"))
        for (int i = 0; i < credit; i++) emqp_say(s, "READY", 0);
    if (m->count != 6 || !is(m, 1, "REQUEST")) return;
    emqp_say(s, "REPLY", SNDMORE);
    pass(s, m, 5, SNDMORE);
    pass(s, m, 2, 0);
    emqp_say(s, "READY", 0);
}

static void emqp_leave(void *s) { emqp_say(s, "KBYE", 0); }

/* -- no dialect: what comes is sent back ------------------------------------------------------------ */

static void plain_ask(void *s, const char *id, int id_length, const char *body) {
    (void)id, (void)id_length;
    put(s, "", 0, SNDMORE);
    put(s, body, size, 0);
}

static int plain_is_answer(const Message *m) {
    return m->count == 2 && m->length[1] == (int)size ? 1 : -1;
}

static void plain_work(void *s, Message *m) {
    for (int i = 0; i < m->count; i++) pass(s, m, i, i < m->count - 1 ? SNDMORE : 0);
}

static void nothing(void *s) { (void)s; }

static const Dialect DIALECTS[] = {
    {"mdr", mdr_ask, mdr_is_answer, mdr_greet, mdr_work, mdr_leave},
    {"emqp", emqp_ask, emqp_is_answer, emqp_greet, emqp_work, emqp_leave},
    {"plain", plain_ask, plain_is_answer, nothing, plain_work, nothing},
    {"direct", plain_ask, plain_is_answer, nothing, plain_work, nothing},
};

/* -- the two ends ---------------------------------------------------------------------------------- */

static void *open_socket(const char *endpoint, int bind, int timeout_ms, Message *m) {
    int patience = PATIENCE_MS, linger = 1000;
    void *socket = zmq_socket(context, DEALER);
    if (!socket) die("no socket could be made");
    zmq_setsockopt(socket, RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    zmq_setsockopt(socket, SNDTIMEO, &patience, sizeof patience);
    zmq_setsockopt(socket, LINGER, &linger, sizeof linger);
    if ((bind ? zmq_bind : zmq_connect)(socket, endpoint)) die("an endpoint is wrong or in use");
    for (int i = 0; i < MAX_FRAMES; i++) zmq_msg_init(&m->part[i]);
    return socket;
}

static void *serve(void *unused) {
    Message m;
    void *socket = open_socket(backend, binds, LOOK_MS, &m);
    dialect->greet(socket);
    while (!over)
        if (receive(socket, &m)) dialect->work(socket, &m);
    dialect->leave(socket);
    zmq_close(socket);
    return unused;
}

static void *client;
static Message answer;
static char *body;
static long sent, got;

static void ask(void) {
    char id[24];
    int length = snprintf(id, sizeof id, "%ld", ++sent);
    memcpy(body, id, length);
    dialect->ask(client, id, length, body);
}

static void await_answer(void) {
    int found;
    do {
        if (!receive(client, &answer)) die("no answer came in 10 s");
        found = dialect->is_answer(&answer);
        if (found < 0) die("an answer is not what the request asked for");
    } while (!found);
    got++;
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void measure(int window, double seconds, double warmup) {
    long counted = 0, kept = 0, capacity = 0;
    float *times = NULL;
    double began = now() + warmup, end = began + seconds, last = began;
    for (double t = now(); t < end;) {
        double asked = t; /* the last answer came just now, so this is when the next request leaves */
        while (sent - got < window) ask();
        await_answer();
        t = now();
        if (t < began) continue;
        last = t;
        counted++;
        if (window > 1) continue;
        if (kept == capacity) {
            capacity = capacity ? capacity * 2 : 65536;
            if (!(times = realloc(times, capacity * sizeof *times))) die("no memory");
        }
        times[kept++] = (float)((t - asked) * 1e6);
    }
    while (got < sent) await_answer();
    printf("{\"total\": %ld, \"counted\": %ld, \"seconds\": %.6f", got, counted, last - began);
    if (kept) {
        qsort(times, kept, sizeof *times, by_size);
        printf(", \"p50_us\": %.1f, \"p99_us\": %.1f", times[kept / 2], times[(long)(kept * 0.99)]);
    }
    printf("}\n");
    free(times);
}

static void load_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) die(dlerror());
#define FIND(name)                                              \
    do {                                                        \
        *(void **)&name = dlsym(library, #name);                \
        if (!name) die("libzmq has no " #name);                 \
    } while (0)
    FIND(zmq_ctx_new);
    FIND(zmq_ctx_term);
    FIND(zmq_socket);
    FIND(zmq_close);
    FIND(zmq_connect);
    FIND(zmq_bind);
    FIND(zmq_send);
    FIND(zmq_msg_init);
    FIND(zmq_msg_recv);
    FIND(zmq_msg_send);
    FIND(zmq_msg_more);
    FIND(zmq_msg_data);
    FIND(zmq_setsockopt);
}

int main(int argc, char **argv) {
    if (argc != 11) die("usage: load LIBZMQ KIND FRONTEND BACKEND SIZE WINDOW SECONDS WARMUP CREDIT WORKERS");
    load_library(argv[1]);
    for (size_t i = 0; i < sizeof DIALECTS / sizeof *DIALECTS; i++)
        if (!strcmp(argv[2], DIALECTS[i].name)) dialect = &DIALECTS[i];
    if (!dialect) die("KIND is mdr, emqp, plain or direct");
    binds = !strcmp(argv[2], "direct");
    frontend = argv[3];
    backend = argv[4];
    size = strtoul(argv[5], NULL, 10);
    int window = atoi(argv[6]), workers = atoi(argv[10]);
    double seconds = atof(argv[7]), warmup = atof(argv[8]);
    credit = atoi(argv[9]);
    if (size < 20 || window < 1 || credit < 1 || workers < 1 || workers > MAX_WORKERS || seconds <= 0)
        die("SIZE is at least 20, WINDOW, CREDIT and WORKERS at least 1, WORKERS at most 256");

    context = zmq_ctx_new();
    pthread_t threads[MAX_WORKERS];
    for (int i = 0; i < workers; i++)
        if (pthread_create(&threads[i], NULL, serve, NULL)) die("no thread could be started");
    client = open_socket(frontend, 0, PATIENCE_MS, &answer);
    body = malloc(size);
    if (!body) die("no memory");
    memset(body, FILL, size);
    /* One round trip before the clock starts: connections are made and a worker is known. */
    ask();
    await_answer();
    measure(window, seconds, warmup);
    fflush(stdout);
    over = 1;
    for (int i = 0; i < workers; i++) pthread_join(threads[i], NULL);
    zmq_close(client);
    zmq_ctx_term(context);
    return 0;
}
