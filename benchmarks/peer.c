/* The C client (libnats) on the same work as our client and nats-py: what a client can reach on this machine.
 *
 * peer WORK URL COUNT: does the work and prints messages a second, then microseconds of CPU for one. Built on the fly by
 * benchmarks/forms.py where Debian's libnats-dev (or one in LIBNATS) and a C compiler are there. */

#include <nats/nats.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define SIZE 128
#define TIMEOUT 60000

static char payload[SIZE];
static double wall_at, cpu_at;

static void fail(const char *what, natsStatus status)
{
    fprintf(stderr, "%s: %s\n", what, natsStatus_GetText(status));
    exit(1);
}

static void check(const char *what, natsStatus status)
{
    if (status != NATS_OK)
        fail(what, status);
}

static double wall(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double cpu(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used); /* of all threads: the client reads in one of its own */
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec)
        + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void begin(void)
{
    wall_at = wall();
    cpu_at = cpu();
}

static void end(int count)
{
    printf("%f %f\n", count / (wall() - wall_at), (cpu() - cpu_at) / count * 1e6);
}

static void publish(natsConnection *nc, int count)
{
    begin();
    for (int n = 0; n < count; n++)
        check("publish", natsConnection_Publish(nc, "core.a", payload, SIZE));
    check("flush", natsConnection_FlushTimeout(nc, TIMEOUT));
    end(count);
}

static void subscribe(natsConnection *nc, int count)
{
    natsSubscription *sub = NULL;
    check("subscribe", natsConnection_SubscribeSync(&sub, nc, "flood.a"));
    check("limits", natsSubscription_SetPendingLimits(sub, -1, -1));
    check("flush", natsConnection_FlushTimeout(nc, TIMEOUT));
    puts("ready");
    fflush(stdout);
    for (int n = 0; n < count; n++)
    {
        natsMsg *message = NULL;
        check("next", natsSubscription_NextMsg(&message, sub, TIMEOUT));
        if (n == 0)
            begin();
        natsMsg_Destroy(message);
    }
    end(count);
    natsSubscription_Destroy(sub);
}

static void request(natsConnection *nc, int count)
{
    begin();
    for (int n = 0; n < count; n++)
    {
        natsMsg *reply = NULL;
        check("request", natsConnection_Request(&reply, nc, "echo", payload, SIZE, TIMEOUT));
        natsMsg_Destroy(reply);
    }
    end(count);
}

static jsCtx *context(natsConnection *nc)
{
    jsCtx *js = NULL;
    jsOptions options;
    check("options", jsOptions_Init(&options));
    options.Wait = TIMEOUT;
    options.PublishAsync.MaxPending = 4000;
    options.PublishAsync.StallWait = TIMEOUT;
    check("jetstream", natsConnection_JetStream(&js, nc, &options));
    return js;
}

static void publish_acked(natsConnection *nc, int count)
{
    jsCtx *js = context(nc);
    char subject[32];
    begin();
    for (int n = 0; n < count; n++)
    {
        snprintf(subject, sizeof subject, "bench.%d", n % 1000);
        check("publish", js_PublishAsync(js, subject, payload, SIZE, NULL));
    }
    check("acks", js_PublishAsyncComplete(js, NULL));
    end(count);
    jsCtx_Destroy(js);
}

static void pull(natsConnection *nc, int count)
{
    jsCtx *js = context(nc);
    natsSubscription *sub = NULL;
    jsSubOptions options;
    check("options", jsSubOptions_Init(&options));
    options.Stream = "BENCH";
    options.ManualAck = true;
    options.Config.MaxAckPending = 20000;
    check("consumer", js_PullSubscribe(&sub, js, "bench.*", NULL, NULL, &options, NULL));
    begin();
    for (int seen = 0; seen < count;)
    {
        natsMsgList list;
        check("fetch", natsSubscription_Fetch(&list, sub, 2000, TIMEOUT, NULL));
        for (int n = 0; n < list.Count; n++)
            check("ack", natsMsg_Ack(list.Msgs[n], NULL));
        seen += list.Count;
        natsMsgList_Destroy(&list);
    }
    check("flush", natsConnection_FlushTimeout(nc, TIMEOUT));
    end(count);
    natsSubscription_Destroy(sub);
    jsCtx_Destroy(js);
}

static void ordered(natsConnection *nc, int count)
{
    jsCtx *js = context(nc);
    natsSubscription *sub = NULL;
    jsSubOptions options;
    check("options", jsSubOptions_Init(&options));
    options.Stream = "BENCH";
    options.Ordered = true;
    begin();
    check("consumer", js_SubscribeSync(&sub, js, "bench.*", NULL, &options, NULL));
    for (int n = 0; n < count; n++)
    {
        natsMsg *message = NULL;
        check("next", natsSubscription_NextMsg(&message, sub, TIMEOUT));
        natsMsg_Destroy(message);
    }
    end(count);
    natsSubscription_Destroy(sub);
    jsCtx_Destroy(js);
}

/* libnats has no batched Direct Get: the requests and the subscription are made by hand, as a program would. */
static void batched(natsConnection *nc, int count)
{
    natsInbox *inbox = NULL;
    natsSubscription *sub = NULL;
    char body[64];
    check("inbox", natsInbox_Create(&inbox));
    check("subscribe", natsConnection_SubscribeSync(&sub, nc, inbox));
    check("limits", natsSubscription_SetPendingLimits(sub, -1, -1));
    begin();
    for (int seen = 0; seen < count;)
    {
        int size = snprintf(body, sizeof body, "{\"seq\":%d,\"batch\":1000}", seen + 1);
        check("get", natsConnection_PublishRequest(nc, "$JS.API.DIRECT.GET.BENCH", inbox, body, size));
        for (;;)
        {
            natsMsg *message = NULL;
            const char *status = NULL, *sequence = NULL;
            check("next", natsSubscription_NextMsg(&message, sub, TIMEOUT));
            if (natsMsgHeader_Get(message, "Status", &status) == NATS_OK)
            {
                natsMsg_Destroy(message);
                break;
            }
            check("sequence", natsMsgHeader_Get(message, "Nats-Sequence", &sequence));
            seen++;
            natsMsg_Destroy(message);
        }
    }
    end(count);
    natsSubscription_Destroy(sub);
    natsInbox_Destroy(inbox);
}

static void keys(natsConnection *nc, int count)
{
    jsCtx *js = context(nc);
    kvStore *kv = NULL;
    check("bucket", js_KeyValue(&kv, js, "bench"));
    begin();
    for (int seen = 0; seen < count;)
    {
        kvKeysList list;
        check("keys", kvStore_Keys(&list, kv, NULL));
        seen += list.Count;
        kvKeysList_Destroy(&list);
    }
    end(count);
    kvStore_Destroy(kv);
    jsCtx_Destroy(js);
}

static void watch(natsConnection *nc, int count)
{
    jsCtx *js = context(nc);
    kvStore *kv = NULL;
    check("bucket", js_KeyValue(&kv, js, "bench"));
    begin();
    for (int seen = 0; seen < count;)
    {
        kvWatcher *watcher = NULL;
        check("watch", kvStore_WatchAll(&watcher, kv, NULL));
        for (;;)
        {
            kvEntry *entry = NULL;
            check("next", kvWatcher_Next(&entry, watcher, TIMEOUT));
            if (entry == NULL) /* the initial values are complete */
                break;
            seen++;
            kvEntry_Destroy(entry);
        }
        kvWatcher_Stop(watcher);
        kvWatcher_Destroy(watcher);
    }
    end(count);
    kvStore_Destroy(kv);
    jsCtx_Destroy(js);
}

static const struct
{
    const char *name;
    void (*run)(natsConnection *nc, int count);
} WORKS[] = {
    {"publish", publish}, {"subscribe", subscribe}, {"request", request}, {"publish_acked", publish_acked},
    {"pull", pull}, {"ordered", ordered}, {"batched", batched}, {"keys", keys},
    {"watch", watch},
};

int main(int argc, char **argv)
{
    if (argc == 4)
        for (size_t n = 0; n < sizeof WORKS / sizeof *WORKS; n++)
            if (strcmp(argv[1], WORKS[n].name) == 0)
            {
                natsConnection *nc = NULL;
                memset(payload, 'x', SIZE);
                check("connect", natsConnection_ConnectTo(&nc, argv[2]));
                WORKS[n].run(nc, atoi(argv[3]));
                natsConnection_Destroy(nc);
                nats_Close();
                return 0;
            }
    fprintf(stderr, "usage: peer WORK URL COUNT\n");
    return 2;
}
