//! What is answered while Redis is away, and after. Each row has a server of its own, and stops it.

use std::time::{Duration, Instant};

use lockgate::{ErrorKind, Store};
use lockgate_tests::{Answer, Case, Request, Server, Site, eventually};

use super::{Job, lock::busy, recovery::runs_what_it_defers};

/// Longest time to an answer while the store is away.
const PROMPT: Duration = Duration::from_secs(1);

pub(super) async fn site(case: &Case, server: &Server) -> Site {
    // Above the default: here a loaded machine is no outage. A server that is gone says so at once, and whoever
    // waited for the deadline all the same would not be prompt.
    site_within(case, server, Duration::from_secs(5)).await
}

pub(super) async fn site_within(case: &Case, server: &Server, deadline: Duration) -> Site {
    let store = Store::builder(&server.url("scenario")).call_timeout(deadline);
    case.plan_on(store.connect().await.expect("a store")).start().await
}

/// Whoever asks while the store is away is answered soon. A machine under load may be late by itself,
/// but not each time. For requests that may be sent again: see [`Prompt`] for the others.
pub(super) async fn promptly(request: Request) -> Answer {
    let mut late = Vec::new();
    for _ in 0..3 {
        let (answer, took) = timed(request.clone()).await;
        if took < PROMPT {
            return answer;
        }
        late.push(took);
    }
    panic!("answered after {late:?}")
}

async fn timed(request: Request) -> (Answer, Duration) {
    let sent = Instant::now();
    let answer = request.send().await;
    let took = sent.elapsed();
    println!("figure: longest answer while the store is away {} ms", took.as_millis());
    (answer, took)
}

/// As [`promptly`], of requests that count: each is sent once, and some of them have to be answered soon.
#[derive(Default)]
struct Prompt(Vec<Duration>);

impl Prompt {
    async fn answer(&mut self, request: Request) -> Answer {
        let (answer, took) = timed(request).await;
        self.0.push(took);
        answer
    }

    fn shown(self) {
        assert!(self.0.iter().any(|took| *took < PROMPT), "answered after {:?}", self.0);
    }
}

#[track_caller]
pub(super) fn away(answer: Answer) {
    let answer = answer.expect(503);
    let _ = answer.retry_after();
    let problem = answer.problem();
    let kind = problem["type"].as_str().unwrap_or_default();
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{problem}");
    assert!(!answer.text().to_lowercase().contains("redis"), "{problem}");
    super::tells_no_token(&answer, "");
}

pub(super) async fn comes_back(site: &Site) {
    eventually("the lock to be there again", async || {
        site.post("/orders/back/pay").send().await.status == 200
    })
    .await;
}

pub(crate) async fn a_lock_is_503_and_comes_back(case: Case) {
    let mut server = Server::start().await;
    let site = site(&case, &server).await;
    comes_back(&site).await;
    server.kill();
    let at_once: Vec<_> =
        (0..8).map(|_| tokio::spawn(promptly(site.post("/orders/7/pay")))).collect();
    for answer in at_once {
        away(answer.await.unwrap());
    }
    away(promptly(site.post("/orders/7/ship")).await);
    away(promptly(site.get("/deferred/00112233445566778899aabbccddeeff00")).await);
    let _ = promptly(site.get("/orders/7/pay?tag=safe")).await.expect(200);
    let ran = case.desk.ran();
    let locked = ran.iter().filter(|ran| ran.tag != "safe");
    assert!(locked.clone().all(|ran| ran.fence.is_some()), "{ran:?}");
    server.restart().await;
    comes_back(&site).await;
    let _ = site.post("/orders/7/ship").send().await.expect(200);
}

/// A request that is deferred whatever its lock says has found no lock busy.
pub(crate) async fn what_is_always_deferred_is_503(case: Case) {
    let mut server = Server::start().await;
    let site = site(&case, &server).await;
    comes_back(&site).await;
    let late = |path: &str| site.post(path).header("prefer", "respond-async");
    let _ = late("/async/7?tag=before").send().await.expect(202);
    server.kill();
    for request in [site.post("/always/7?tag=away"), late("/async/7?tag=away")] {
        away(promptly(request).await);
    }
    server.restart().await;
    comes_back(&site).await;
    let _ = site.post("/always/8?tag=after").send().await.expect(202);
    let ran = case.desk.ran();
    assert!(ran.iter().all(|ran| ran.tag != "away"), "{ran:?}");
}

pub(crate) async fn a_lock_and_a_quota_can_admit(case: Case) {
    let mut server = Server::start().await;
    let site = site(&case, &server).await;
    server.kill();
    for _ in 0..5 {
        let answer = promptly(site.get("/quota/admit")).await.expect(200);
        assert!(!answer.has("ratelimit") && !answer.has("ratelimit-policy"), "{answer:?}");
        assert!(answer.json()["remaining"].is_null(), "{answer:?}");
    }
    away(promptly(site.get("/quota/refuse")).await);
    let answer = promptly(site.post("/orders/7/anyway")).await.expect(200);
    assert!(answer.json()["fence"].is_null(), "{answer:?}");
    server.restart().await;
    comes_back(&site).await;
    let answer = site.post("/orders/7/anyway").send().await.expect(200);
    assert!(answer.json()["fence"].is_u64(), "{answer:?}");
    let answer = site.get("/quota/admit").send().await.expect(200);
    assert!(answer.field("ratelimit").contains(";r=2;"), "{answer:?}");
}

/// By default a process goes on by itself, with what the quota had left, until the store is well again.
pub(crate) async fn a_quota_is_kept_by_the_process_alone(case: Case) {
    let mut server = Server::start().await;
    let site = site(&case, &server).await;
    let _ = site.get("/quota/three").send().await.expect(200);
    server.kill();
    let mut prompt = Prompt::default();
    for _ in 0..2 {
        let answer = prompt.answer(site.get("/quota/three")).await.expect(200);
        assert!(!answer.has("ratelimit") && !answer.has("ratelimit-policy"), "{answer:?}");
    }
    let answer = prompt.answer(site.get("/quota/three")).await.expect(429);
    prompt.shown();
    assert!(answer.retry_after() <= 20, "one of three a minute: {answer:?}");
    server.restart().await;
    // A server that was killed has forgotten.
    eventually("quotas to be counted in the store again", async || {
        let answer = site.get("/quota/three").send().await;
        answer.status == 200 && answer.has("ratelimit")
    })
    .await;
}

/// The store goes away after the lock was found busy: nothing is stored, and nothing is promised.
pub(crate) async fn a_request_is_not_deferred(case: Case) {
    let mut server = Server::start().await;
    let site = site(&case, &server).await;
    let hold = site.hold("/orders/7/pay").await;
    let refused = site.post("/late/7?after=late").spawn();
    case.desk.gates.arrived("late").await;
    server.kill();
    // Known to be away: what is sent from now on has not run. (A call that finds it out itself may
    // have, and is answered as in the next row.)
    away(promptly(site.post("/orders/7/pay")).await);
    case.desk.gates.open("late");
    let answer = refused.answer().await;
    // Whether the connection broke before or under the call decides which of the two is the truth.
    if answer.has("location") {
        let _ = answer.expect(503).problem();
    } else {
        busy(answer);
    }
    away(promptly(site.post("/orders/7/refund")).await);
    let _ = promptly(site.post("/orders/7/refund")).await.expect(503);
    let _ = hold.let_go().await.expect(200);
}

/// As above, but the store hangs: the client is told where to look whether it was accepted.
pub(crate) async fn an_acceptance_without_an_answer(case: Case) {
    let server = Server::start().await;
    let site = site_within(&case, &server, Duration::from_secs(3)).await;
    // A script that the server does not know yet would not be sent twice to a server that hangs.
    runs_what_it_defers(&site).await;
    let hold = site.hold("/orders/7/pay").await;
    let refused = site.post("/late/7?after=late").spawn();
    case.desk.gates.arrived("late").await;
    server.pause();
    case.desk.gates.open("late");
    let answer = refused.answer().await.expect(503);
    let _ = answer.retry_after();
    let _ = answer.problem();
    let location = answer.field("location").to_owned();
    server.resume();
    // The call lay in the server's socket, and has run by now: the status tells the truth.
    eventually("the job to be found", async || site.get(&location).send().await.status == 200)
        .await;
    let id = location.trim_start_matches("/deferred/").to_owned();
    let job = Job { id, location };
    assert_eq!(job.document(&site).await["state"], "queued");
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
}

pub(crate) async fn a_store_that_hangs_is_away(case: Case) {
    let server = Server::start().await;
    // As it is by default.
    let store = Store::connect(&server.url("scenario")).await.expect("a store");
    let site = case.plan_on(store).start().await;
    comes_back(&site).await;
    server.pause();
    for _ in 0..8 {
        away(promptly(site.post("/orders/7/pay")).await);
    }
    let _ = promptly(site.get("/quota/three")).await.expect(200);
    server.resume();
    comes_back(&site).await;
    // What the calls without an answer have taken is given back.
    eventually("the lock to be free", async || {
        site.post("/orders/7/ship").send().await.status == 200
    })
    .await;
}

pub(crate) async fn a_wrong_password_is_a_fault_of_the_configuration() {
    let server = Server::with_password("c0rrect").await;
    let _ = Store::connect(&server.url("scenario")).await.expect("a store");
    let url = server.url("scenario");
    for wrong in [url.replace("c0rrect", "s3cret"), url.replace(":c0rrect@", "")] {
        let store = Store::builder(&wrong).call_timeout(Duration::from_secs(10));
        let error = store.connect().await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Config);
        let told = format!("{error} {error:?}");
        assert!(!told.contains("s3cret") && !told.contains("c0rrect"), "{told}");
    }
}
