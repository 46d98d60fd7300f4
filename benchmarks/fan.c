/* One publisher and many subscribers, as threads of one process, with a broker between them.
 *
 * It is C so that the broker, not the generator, is what is measured; see load.c for how libzmq is found.  The
 * publisher is never further ahead of the slowest subscriber than the window, so that nothing need be dropped,
 * and every subscriber checks that it gets every publication once and in order.
 *
 *   fan LIBZMQ PUBLISH SUBSCRIBE SUBSCRIBERS SIZE WINDOW SECONDS WARMUP
 *
 * Prints one line of JSON: deliveries in all, those that were counted, and in how many seconds; exit status 1 and a
 * line on stderr if anything was not as it should be.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PUB = 1, SUB = 2, SUBSCRIBE = 6, LINGER = 17, SNDHWM = 23, RCVHWM = 24, SNDTIMEO = 28 };
enum { DONTWAIT = 1, SNDMORE = 2, IO_THREADS = 1, POLLIN = 1 };
enum { MAX_SUBSCRIBERS = 256, PATIENCE_MS = 10000, LOOK_MS = 20, TURN = 256 };

/* zmq.h promises 64 bytes, aligned like a pointer. */
typedef union {
    unsigned char space[64];
    void *alignment;
} Part;

typedef struct {
    void *socket;
    int fd;
    short events, revents;
} Item;

static void *(*zmq_ctx_new)(void);
static int (*zmq_ctx_set)(void *, int, int);
static int (*zmq_ctx_term)(void *);
static void *(*zmq_socket)(void *, int);
static int (*zmq_close)(void *);
static int (*zmq_connect)(void *, const char *);
static int (*zmq_send)(void *, const void *, size_t, int);
static int (*zmq_poll)(Item *, int, long);
static int (*zmq_errno)(void);
static int (*zmq_msg_init)(Part *);
static int (*zmq_msg_recv)(Part *, void *, int);
static int (*zmq_msg_more)(Part *);
static void *(*zmq_msg_data)(Part *);
static int (*zmq_setsockopt)(void *, int, const void *, size_t);

static void *context;
static const char *subscribe_at;
static char topic[64];
static int subscribers;
static size_t size;
static atomic_int over;
/* The number of the next publication that each subscriber expects; 0 before its first. */
static atomic_long expected[MAX_SUBSCRIBERS];

static void die(const char *why) {
    fprintf(stderr, "fan: %s\n", why);
    _Exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *open_socket(int kind, const char *endpoint) {
    int none = 0, patience = PATIENCE_MS;
    void *socket = zmq_socket(context, kind);
    if (!socket) die("no socket could be made");
    zmq_setsockopt(socket, LINGER, &none, sizeof none);
    /* The window is the limit. */
    zmq_setsockopt(socket, SNDHWM, &none, sizeof none);
    zmq_setsockopt(socket, RCVHWM, &none, sizeof none);
    zmq_setsockopt(socket, SNDTIMEO, &patience, sizeof patience);
    if (kind == SUB) zmq_setsockopt(socket, SUBSCRIBE, topic, strlen(topic));
    if (zmq_connect(socket, endpoint)) die("an endpoint is wrong");
    return socket;
}

/* One publication, if there is one: topic and body, whose first bytes are its number. */
static int take(void *socket, int who, Part *part) {
    int64_t number;
    int length = zmq_msg_recv(part, socket, DONTWAIT);
    if (length < 0) {
        if (zmq_errno() == EAGAIN) return 0;
        die("a subscriber cannot receive");
    }
    if (!zmq_msg_more(part)) die("a publication has no body");
    length = zmq_msg_recv(part, socket, DONTWAIT);
    if (length != (int)size || zmq_msg_more(part)) die("a publication is not as it was sent");
    memcpy(&number, zmq_msg_data(part), sizeof number);
    long next = atomic_load_explicit(&expected[who], memory_order_relaxed);
    if (next && number != next) {
        fprintf(stderr, "fan: subscriber %d got %ld and expected %ld\n", who, (long)number, next);
        _Exit(1);
    }
    atomic_store_explicit(&expected[who], number + 1, memory_order_release);
    return 1;
}

/* All subscribers in one thread: taking what is there from one after the other costs least. */
static void *listen_all(void *unused) {
    static Item items[MAX_SUBSCRIBERS];
    Part part;
    zmq_msg_init(&part);
    for (int i = 0; i < subscribers; i++) {
        items[i].socket = open_socket(SUB, subscribe_at);
        items[i].events = POLLIN;
    }
    while (!over) {
        int got = 0;
        for (int i = 0; i < subscribers; i++)
            for (int n = 0; n < TURN && take(items[i].socket, i, &part); n++) got++;
        if (!got) zmq_poll(items, subscribers, LOOK_MS);
    }
    for (int i = 0; i < subscribers; i++) zmq_close(items[i].socket);
    return unused;
}

static long slowest(void) {
    long least = atomic_load_explicit(&expected[0], memory_order_acquire);
    for (int i = 1; i < subscribers; i++) {
        long one = atomic_load_explicit(&expected[i], memory_order_acquire);
        if (one < least) least = one;
    }
    return least;
}

static long received(void) {
    long sum = 0;
    for (int i = 0; i < subscribers; i++) sum += atomic_load_explicit(&expected[i], memory_order_acquire);
    return sum;
}

static void rest(long microseconds) {
    struct timespec t = {0, microseconds * 1000};
    nanosleep(&t, NULL);
}

static void *publisher;
static char *body;
static int64_t sent;

static void publish(void) {
    sent++;
    memcpy(body, &sent, sizeof sent);
    if (zmq_send(publisher, topic, strlen(topic), SNDMORE) < 0 || zmq_send(publisher, body, size, 0) < 0)
        die("a publication could not be sent in time");
}

static void measure(int window, double seconds, double warmup) {
    double t = now(), began = t + warmup, end = began + seconds, heard = t;
    long first = received(), from = -1, before = first, least = slowest();
    while ((t = now()) < end) {
        if (from < 0 && t >= began) {
            from = received();
            began = t;
        }
        for (int n = 0; n < 64 && sent + 1 - least < window; n++) publish();
        least = slowest();
        if (sent + 1 - least >= window) {
            if (least == before && t - heard > PATIENCE_MS / 1000.0) die("a subscriber got nothing for 10 s");
            /* Short enough that the window never runs dry. */
            rest(50);
        }
        if (least != before) {
            before = least;
            heard = t;
        }
    }
    long counted = received() - from;
    double took = now() - began;
    for (double until = now() + PATIENCE_MS / 1000.0; slowest() <= sent; rest(1000))
        if (now() > until) die("the last publications did not arrive");
    printf("{\"total\": %ld, \"counted\": %ld, \"seconds\": %.6f}\n", received() - first, counted, took);
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
    FIND(zmq_ctx_set);
    FIND(zmq_ctx_term);
    FIND(zmq_socket);
    FIND(zmq_close);
    FIND(zmq_connect);
    FIND(zmq_send);
    FIND(zmq_poll);
    FIND(zmq_errno);
    FIND(zmq_msg_init);
    FIND(zmq_msg_recv);
    FIND(zmq_msg_more);
    FIND(zmq_msg_data);
    FIND(zmq_setsockopt);
}

int main(int argc, char **argv) {
    if (argc != 9) die("usage: fan LIBZMQ PUBLISH SUBSCRIBE SUBSCRIBERS SIZE WINDOW SECONDS WARMUP");
    load_library(argv[1]);
    subscribe_at = argv[3];
    subscribers = atoi(argv[4]);
    size = strtoul(argv[5], NULL, 10);
    int window = atoi(argv[6]);
    double seconds = atof(argv[7]), warmup = atof(argv[8]);
    if (subscribers < 1 || subscribers > MAX_SUBSCRIBERS || size < 8 || window < 1 || seconds <= 0)
        die("SUBSCRIBERS are 1 to 256, SIZE is at least 8, WINDOW at least 1");
    /* Its own topic: the last value of another run would be none of our numbers. */
    snprintf(topic, sizeof topic, "bench/%ld/%.0f", (long)getpid(), now() * 1e6);
    context = zmq_ctx_new();
    zmq_ctx_set(context, IO_THREADS, 2);
    pthread_t thread;
    if (pthread_create(&thread, NULL, listen_all, NULL)) die("no thread could be started");
    publisher = open_socket(PUB, argv[2]);
    if (!(body = calloc(1, size))) die("no memory");
    /* Publications begin when all connections are there: until then they go nowhere. */
    for (double until = now() + PATIENCE_MS / 1000.0; !slowest(); rest(10000)) {
        if (now() > until) die("not all subscribers were reached in 10 s");
        publish();
    }
    for (double until = now() + PATIENCE_MS / 1000.0; slowest() <= sent; rest(1000))
        if (now() > until) die("the first publications did not arrive");
    measure(window, seconds, warmup);
    fflush(stdout);
    over = 1;
    pthread_join(thread, NULL);
    zmq_close(publisher);
    zmq_ctx_term(context);
    return 0;
}
