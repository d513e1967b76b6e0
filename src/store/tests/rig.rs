//! A store and its clock, and shorthands for steps whose outcome a case takes for granted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use crate::{
    clock::Clock,
    key::Key,
    store::{
        Store,
        backend::{
            ACCEPT_WINDOW, Acquire, Acquired, Backend, Beat, Caps, Charge, Charged, Claim, Claimed,
            Enqueue, Enqueued, GaveBack, JobId, JobPolicy, JobState, JobView, Listed, Listing,
            Mode, NextRun, Node, Past, Renewal, Settle, SettleCharge, SettledRun, State, Step,
            Tally, Token, Verdict,
        },
        fsck::CheckReport,
        hints::Hints,
        memory::Memory,
        rate::{By, Item, Rule},
    },
};

/// A time that no case lets pass by chance, and one that is over soon.
pub(super) const LONG: Duration = Duration::from_secs(600);
pub(super) const SHORT: Duration = Duration::from_secs(2);

pub(super) struct Rig {
    store: Store,
    memory: Option<Arc<Memory>>,
    time: Time,
    /// Milliseconds by which a server's data were moved into the past.
    travelled: AtomicI64,
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

/// What is due in a shard, and when to look again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Looked {
    pub(super) names: Vec<Key>,
    pub(super) next: Option<Duration>,
}

enum Time {
    Manual(Clock),
    #[cfg(feature = "redis")]
    Travel(super::server::Server),
    #[cfg(feature = "redis")]
    TravelApart(super::cluster::Space),
}

impl Rig {
    pub(super) fn memory() -> Self {
        let clock = Clock::manual();
        let memory = Arc::new(Memory::new(clock.clone()));
        Self {
            store: Store::on(Arc::clone(&memory) as Arc<dyn Backend>),
            memory: Some(memory),
            time: Time::Manual(clock),
            travelled: AtomicI64::new(0),
        }
    }

    #[cfg(feature = "redis")]
    pub(super) async fn redis() -> Self {
        Self::to(super::server::Server::shared().await).await
    }

    /// By connections of a pool of the application's.
    #[cfg(feature = "bb8-redis")]
    pub(super) async fn pool() -> Self {
        Self::to(super::server::Server::behind_a_pool().await).await
    }

    /// Where sentinels say.
    #[cfg(feature = "redis")]
    pub(super) async fn sentinels() -> Self {
        Self::to(super::server::Server::behind_sentinels().await).await
    }

    #[cfg(feature = "redis")]
    async fn to(server: super::server::Server) -> Self {
        let store = server.store().await;
        let time = Time::Travel(server);
        Self { store, memory: None, time, travelled: AtomicI64::new(0) }
    }

    /// Three nodes that share the shards.
    #[cfg(feature = "redis")]
    pub(super) async fn cluster() -> Self {
        let space = super::cluster::Space::new().await;
        let store = space.store().await;
        let time = Time::TravelApart(space);
        Self { store, memory: None, time, travelled: AtomicI64::new(0) }
    }

    #[cfg(feature = "redis")]
    pub(super) fn server(&self) -> &super::server::Server {
        match &self.time {
            Time::Travel(server) => server,
            Time::Manual(_) | Time::TravelApart(_) => panic!("a case for Redis alone"),
        }
    }

    #[cfg(feature = "redis")]
    pub(super) fn space(&self) -> &super::cluster::Space {
        match &self.time {
            Time::TravelApart(space) => space,
            Time::Manual(_) | Time::Travel(_) => panic!("a case for a cluster alone"),
        }
    }

    pub(super) async fn advance(&self, time: Duration) {
        match &self.time {
            Time::Manual(clock) => clock.advance(time),
            #[cfg(feature = "redis")]
            Time::Travel(server) => {
                server.shift(ms(time)).await;
                self.travelled.fetch_add(ms(time), Ordering::SeqCst);
            }
            #[cfg(feature = "redis")]
            Time::TravelApart(space) => {
                space.shift(ms(time)).await;
                self.travelled.fetch_add(ms(time), Ordering::SeqCst);
            }
        }
    }

    /// The store's clock is put back.
    pub(super) async fn put_back(&self, time: Duration) {
        match &self.time {
            Time::Manual(clock) => {
                self.embedded().sweep_counters();
                clock.put_back(time);
            }
            #[cfg(feature = "redis")]
            Time::Travel(server) => {
                server.shift(-ms(time)).await;
                self.travelled.fetch_sub(ms(time), Ordering::SeqCst);
            }
            #[cfg(feature = "redis")]
            Time::TravelApart(space) => {
                space.shift(-ms(time)).await;
                self.travelled.fetch_sub(ms(time), Ordering::SeqCst);
            }
        }
    }

    /// Lets what was given `time` end: a little more than that passes.
    pub(super) async fn pass(&self, time: Duration) {
        self.advance(time + Duration::from_millis(10)).await;
    }

    /// Lets an offer lapse.
    pub(super) async fn miss_the_window(&self) {
        self.pass(ACCEPT_WINDOW).await;
    }

    pub(super) fn backend(&self) -> &dyn Backend {
        self.store.backend()
    }

    #[expect(clippy::unused_async, reason = "a store may need its runtime to listen")]
    pub(super) async fn listen(&self, node: &Node, hints: &Arc<Hints>) {
        drop(self.backend().listen(node.clone(), hints));
    }

    pub(super) fn embedded(&self) -> &Memory {
        self.memory.as_ref().expect("a case for memory alone")
    }

    /// How many things the embedded store keeps.
    pub(super) fn stored(&self) -> usize {
        self.embedded().stored()
    }

    /// Whether the shards are on several nodes.
    pub(super) fn is_apart(&self) -> bool {
        self.backend().is_apart()
    }

    /// Whether whoever sends a message learns how many hear it.
    pub(super) async fn knows_who_listens(&self) -> bool {
        #[cfg(feature = "redis")]
        if let Time::TravelApart(space) = &self.time {
            return space.tells_shards().await;
        }
        true
    }

    /// Whether listening begins with a Resync.
    pub(super) fn resyncs(&self) -> bool {
        !matches!(self.time, Time::Manual(_))
    }
}

/// Each step, for which the store is there.
impl Rig {
    pub(super) async fn acquire(&self, call: Acquire) -> Acquired {
        self.backend().acquire(call).await.unwrap()
    }

    pub(super) async fn release(&self, key: &Key, me: &Token) -> GaveBack {
        let (key, me) = (key.clone(), me.clone());
        self.backend().release(key, me, Mode::Exclusive).await.unwrap()
    }

    pub(super) fn send_release(&self, key: &Key, me: &Token) -> Step<'static, GaveBack> {
        let (key, me) = (key.clone(), me.clone());
        self.backend().send_release(key, me, Mode::Exclusive).expect("there is a runtime")
    }

    pub(super) async fn renew(&self, items: Vec<Renewal>) -> Vec<bool> {
        self.backend().renew(items).await.unwrap()
    }

    pub(super) async fn charge(&self, call: Charge) -> Charged {
        let items = Arc::clone(&call.items);
        let mut charged = self.backend().charge(call).await.unwrap();
        for (item, state) in items.iter().zip(&mut charged.states) {
            let at = state.window.at.checked_add_signed(self.travelled(&item.rule));
            state.window.at = at.expect("a time of today");
        }
        charged
    }

    pub(super) async fn settle_charge(&self, mut call: SettleCharge) -> Vec<State> {
        for item in &mut call.items {
            if let By::Refund { window, .. } = &mut item.by {
                window.at = window.at.checked_add_signed(-self.travelled(&item.rule)).unwrap();
            }
        }
        self.backend().settle_charge(call).await.unwrap()
    }

    /// What has been moved into the past is still named by the server's time as it was, which it is not for
    /// those who think that time has passed.
    fn travelled(&self, rule: &Rule) -> i64 {
        let ms = self.travelled.load(Ordering::SeqCst);
        if matches!(rule, Rule::Gcra { .. }) { ms * 1000 } else { ms }
    }

    pub(super) async fn enqueue(&self, call: Enqueue) -> Enqueued {
        self.backend().enqueue(call).await.unwrap()
    }

    pub(super) async fn claim(&self, call: Claim) -> Claimed {
        self.backend().claim(call).await.unwrap()
    }

    /// Whether the verdict stands.
    pub(super) async fn settle(&self, call: Settle) -> bool {
        self.settle_and_run(call).await != SettledRun::Lost
    }

    pub(super) async fn settle_and_run(&self, call: Settle) -> SettledRun {
        self.backend().settle(call).await.unwrap()
    }

    pub(super) async fn cancel(&self, id: &JobId) -> Option<JobState> {
        self.backend().cancel(id.clone(), LONG).await.unwrap()
    }

    /// Without its past, which [`Rig::past`] tells.
    pub(super) async fn job(&self, id: &JobId) -> Option<JobView> {
        let job = self.backend().job(id.clone()).await.unwrap();
        job.map(|job| JobView { past: Past::default(), ..job })
    }

    pub(super) async fn past(&self, id: &JobId) -> Option<Past> {
        self.backend().job(id.clone()).await.unwrap().map(|job| job.past)
    }

    pub(super) async fn heads(&self, keys: &[Key]) -> Vec<Option<JobId>> {
        self.backend().heads(keys.to_vec()).await.unwrap()
    }

    /// Without the heads.
    pub(super) async fn due(&self, shard: u16, most: usize) -> Looked {
        let due = self.backend().due(vec![shard], most).await.unwrap().remove(0);
        Looked { names: due.names.into_iter().map(|(name, _)| name).collect(), next: due.next }
    }

    /// Without `lapse`.
    pub(super) async fn beat(&self, node: &Node, lease: Duration) -> Beat {
        Beat { lapse: None, ..self.backend().beat(node.clone(), lease).await.unwrap() }
    }

    pub(super) async fn lapse(&self, node: &Node, lease: Duration) -> Option<Duration> {
        self.backend().beat(node.clone(), lease).await.unwrap().lapse
    }

    pub(super) async fn pause(&self, paused: bool) {
        self.backend().set_paused(paused).await.unwrap();
    }

    pub(super) async fn unclaim(&self, key: &Key, me: &Token, id: Option<&JobId>) -> bool {
        self.backend().unclaim(key.clone(), me.clone(), id.cloned()).await.unwrap()
    }

    pub(super) async fn redrive(&self, id: &JobId) -> Option<JobState> {
        self.backend().redrive(id.clone()).await.unwrap()
    }

    pub(super) async fn purge(&self, id: &JobId) -> bool {
        self.backend().purge(id.clone()).await.unwrap()
    }

    pub(super) async fn tally(&self, shard: u16) -> Tally {
        self.backend().tally(shard).await.unwrap()
    }

    pub(super) async fn list(&self, shard: u16, which: Listing, from: u64, most: usize) -> Listed {
        self.backend().list(shard, which, from, most).await.unwrap()
    }

    pub(super) async fn fsck(&self, repair: bool) -> CheckReport {
        self.store.check().repair(repair).run().await.unwrap()
    }

    pub(super) async fn ping(&self) {
        self.backend().ping().await.unwrap();
    }
}

/// Steps whose outcome is plain; any other fails the case.
impl Rig {
    /// The fence.
    pub(super) async fn hold(&self, key: &Key, me: &Token) -> u64 {
        match self.acquire(ask(key, me)).await {
            Acquired::Held { fence, .. } => fence,
            other => panic!("expected the lock, got {other:?}"),
        }
    }

    /// The sequence of the place.
    pub(super) async fn join(&self, key: &Key, me: &Token) -> u64 {
        match self.acquire(wait(key, me)).await {
            Acquired::Busy { seq, .. } if seq > 0 => seq,
            other => panic!("expected a place in the line, got {other:?}"),
        }
    }

    /// How long it will be busy.
    pub(super) async fn refused(&self, key: &Key, me: &Token) -> Duration {
        match self.acquire(ask(key, me)).await {
            Acquired::Busy { left, seq: 0, .. } => left,
            other => panic!("expected it to be busy, got {other:?}"),
        }
    }

    pub(super) async fn put_off(&self, key: &Key) -> JobId {
        let call = deferred(key);
        let id = call.id.clone();
        match self.enqueue(call).await {
            Enqueued::Stored { .. } => id,
            other => panic!("expected it to be stored, got {other:?}"),
        }
    }

    /// Starts a run that lasts; its attempt.
    pub(super) async fn start(&self, key: &Key, id: &JobId, me: &Token) -> u32 {
        match self.claim(visit(key, id, me)).await {
            Claimed::Claimed(run) => run.attempt,
            other => panic!("expected to run the job, got {other:?}"),
        }
    }

    pub(super) async fn finish(&self, key: &Key, id: &JobId, me: &Token) -> bool {
        self.settle(settled(key, id, me, done())).await
    }

    pub(super) async fn state(&self, id: &JobId) -> Option<JobState> {
        self.job(id).await.map(|job| job.state)
    }

    /// A worker that watches every shard.
    pub(super) async fn worker(&self) -> Node {
        let node = Node::new();
        assert_eq!(self.beat(&node, LONG).await.mine.len(), 64);
        node
    }
}

/// A caller of a process of its own.
pub(super) fn stranger() -> Token {
    Token::new(&Node::new())
}

pub(super) fn key() -> Key {
    Key::path_param("id", "7")
}

/// Keys of one shard.
pub(super) fn neighbours<const N: usize>() -> [Key; N] {
    let first = key();
    let mut found = vec![first.clone()];
    let more = (0..).map(|n: u32| Key::custom(&n.to_string()));
    found.extend(more.filter(|key| key.shard() == first.shard()).take(N - 1));
    found.try_into().unwrap()
}

/// Tries to acquire, for long.
pub(super) fn ask(key: &Key, me: &Token) -> Acquire {
    Acquire {
        key: key.clone(),
        me: me.clone(),
        mode: Mode::Exclusive,
        lease: LONG,
        wait: None,
        old_seq: 0,
        record: None,
    }
}

/// Acquires or waits, for long.
pub(super) fn wait(key: &Key, me: &Token) -> Acquire {
    Acquire { wait: Some(LONG), ..ask(key, me) }
}

/// A job that may not run again after a crash.
pub(super) fn deferred(key: &Key) -> Enqueue {
    Enqueue {
        key: key.clone(),
        id: JobId::new(key),
        envelope: Bytes::from_static(b"request"),
        policy: JobPolicy { max_attempts: 3, ..JobPolicy::default() },
        merge: None,
        record: None,
        caps: Caps {
            resource_jobs: 100,
            resource_bytes: 10_000,
            shard_jobs: 100,
            shard_bytes: 10_000,
            ..Caps::NONE
        },
        owner: String::new(),
        call: None,
    }
}

/// One that may run again after a crash.
pub(super) fn again(key: &Key) -> Enqueue {
    let call = deferred(key);
    Enqueue { policy: JobPolicy { again: true, ..call.policy }, ..call }
}

/// One charge of these, in the shard of the first one's subject.
pub(super) fn together(items: Vec<Item>) -> Charge {
    let tag = items.first().map_or_else(key, |item| item.subject.clone());
    Charge { tag, items: items.into(), times: 1 }
}

/// A fixed window.
pub(super) fn fixed(
    policy: &str,
    subject: &Key,
    (limit, window): (u64, Duration),
    cost: u64,
) -> Item {
    let (policy, subject) = (policy.into(), subject.clone());
    Item { policy, subject, rule: Rule::Fixed { limit, window }, cost, penalty: None }
}

pub(super) fn visit(key: &Key, id: &JobId, me: &Token) -> Claim {
    Claim { key: key.clone(), id: id.clone(), me: me.clone(), lease: LONG, retention: LONG }
}

pub(super) fn settled(key: &Key, id: &JobId, me: &Token, verdict: Verdict) -> Settle {
    Settle { key: key.clone(), id: id.clone(), me: me.clone(), verdict, next: None }
}

pub(super) fn next_run(me: &Token) -> NextRun {
    NextRun { me: me.clone(), lease: LONG, retention: LONG }
}

pub(super) fn done() -> Verdict {
    Verdict::Done { response: Bytes::from_static(b"answer"), retention: LONG }
}
