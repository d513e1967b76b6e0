//! What is answered while Redis is away, and after. Each row has a server of its own, and stops it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lockgate::{ErrorKind, Store};
use lockgate_tests::{Answer, Case, Request, Server, Site, eventually};

use super::{Job, accepted, lock::busy, passes_at_once};

/// Longest time to an answer while the store is away: a few calls with a deadline of 250 ms each, on
/// a machine that has other things to do.
const PROMPT: Duration = Duration::from_millis(1500);

async fn site(case: &Case, server: &Server) -> Site {
    let store = Store::connect(&server.url("scenario"))
        .await
        .expect("a store");
    case.plan_on(store).start().await
}

async fn promptly(request: Request) -> Answer {
    let sent = Instant::now();
    let answer = request.send().await;
    let took = sent.elapsed();
    assert!(took < PROMPT, "answered after {took:?}: {answer:?}");
    answer
}

#[track_caller]
fn away(answer: Answer) {
    let answer = answer.expect(503);
    let _ = answer.retry_after();
    let problem = answer.problem();
    let kind = problem["type"].as_str().unwrap_or_default();
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{problem}");
    assert!(!answer.text().to_lowercase().contains("redis"), "{problem}");
}

async fn comes_back(site: &Site) {
    eventually("the lock to be there again", async || {
        site.post("/orders/back/pay").send().await.status == 200
    })
    .await;
}

pub(crate) async fn a_lock_is_503_and_comes_back(case: Case) {
    let mut server = Server::start().await;
    let site = site(&case, &server).await;
    let _ = site.post("/orders/7/pay").send().await.expect(200);
    server.kill();
    let at_once: Vec<_> = (0..8)
        .map(|_| tokio::spawn(promptly(site.post("/orders/7/pay"))))
        .collect();
    for answer in at_once {
        away(answer.await.unwrap());
    }
    away(promptly(site.post("/orders/7/ship")).await);
    away(promptly(site.get("/deferred/00112233445566778899aabbccddeeff00")).await);
    let _ = promptly(site.get("/orders/7/pay")).await.expect(200);
    assert_eq!(case.desk.ran().len(), 2, "nothing runs unlocked");
    server.restart().await;
    comes_back(&site).await;
    let _ = site.post("/orders/7/ship").send().await.expect(200);
}

pub(crate) async fn a_lock_can_be_admitted(case: Case) {
    let mut server = Server::start().await;
    let site = site(&case, &server).await;
    server.kill();
    let answer = promptly(site.post("/orders/7/anyway")).await.expect(200);
    assert!(answer.json()["fence"].is_null(), "{answer:?}");
    server.restart().await;
    comes_back(&site).await;
    let answer = site.post("/orders/7/anyway").send().await.expect(200);
    assert!(answer.json()["fence"].is_u64(), "{answer:?}");
}

pub(crate) async fn a_quota_admits_or_refuses(case: Case) {
    let mut server = Server::start().await;
    let site = site(&case, &server).await;
    server.kill();
    for _ in 0..5 {
        let answer = promptly(site.get("/quota/three")).await.expect(200);
        assert!(
            !answer.has("ratelimit") && !answer.has("ratelimit-policy"),
            "{answer:?}"
        );
        assert!(answer.json()["remaining"].is_null(), "{answer:?}");
    }
    away(promptly(site.get("/quota/refuse")).await);
    server.restart().await;
    comes_back(&site).await;
    let answer = site.get("/quota/three").send().await.expect(200);
    assert!(answer.field("ratelimit").contains(";r=2;"), "{answer:?}");
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
    let site = site(&case, &server).await;
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
    eventually("the job to be found", async || {
        site.get(&location).send().await.status == 200
    })
    .await;
    let id = location.trim_start_matches("/deferred/").to_owned();
    let job = Job { id, location };
    assert_eq!(job.document(&site).await["state"], "queued");
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(&site).await;
}

pub(crate) async fn a_store_that_hangs_is_away(case: Case) {
    let server = Server::start().await;
    let site = site(&case, &server).await;
    let _ = site.post("/orders/7/pay").send().await.expect(200);
    server.pause();
    for _ in 0..8 {
        away(promptly(site.post("/orders/7/pay")).await);
    }
    let _ = promptly(site.get("/quota/three")).await.expect(200);
    server.resume();
    comes_back(&site).await;
    // What the calls without an answer have taken is given back.
    let _ = site.post("/orders/7/ship").send().await.expect(200);
}

pub(crate) async fn a_store_that_is_not_there_yet(case: Case) {
    let mut server = Server::not_running();
    let site = site(&case, &server).await;
    away(promptly(site.post("/orders/7/pay")).await);
    let _ = promptly(site.get("/quota/three")).await.expect(200);
    server.restart().await;
    comes_back(&site).await;
    runs_what_it_defers(&site).await;
}

/// Requests go on while the server is killed and comes back empty: each is let through under a lock, or
/// refused, in time.
pub(crate) async fn killed_and_restarted_under_load(case: Case) {
    let mut server = Server::start().await;
    let site = Arc::new(site(&case, &server).await);
    let over = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..6)
        .map(|n| {
            let (site, over) = (Arc::clone(&site), Arc::clone(&over));
            tokio::spawn(async move {
                let (mut passed, mut refused) = (0, 0);
                while !over.load(Ordering::Relaxed) {
                    match promptly(site.post(&format!("/orders/{n}/pay"))).await {
                        answer if answer.status == 200 => passed += 1,
                        // Its own last grant may not have been given back yet.
                        answer if answer.status == 409 => drop(busy(answer)),
                        answer => {
                            away(answer);
                            refused += 1;
                        }
                    }
                }
                (passed, refused)
            })
        })
        .collect();
    let asked = || case.desk.ran().len();
    let before = asked();
    eventually("load", async || asked() > before + 50).await;
    server.kill();
    eventually("refusals", async || {
        site.post("/orders/probe/pay").send().await.status == 503
    })
    .await;
    server.restart().await;
    comes_back(&site).await;
    let after = asked();
    eventually("load again", async || asked() > after + 50).await;
    over.store(true, Ordering::Relaxed);
    for requests in load {
        let (passed, refused) = requests.await.expect("prompt answers of the right kind");
        assert!(
            passed > 0 && refused > 0,
            "passed {passed}, refused {refused}"
        );
    }
    for n in 0..6 {
        passes_at_once(&site, &n.to_string()).await;
    }
}

/// Redis comes back empty while a handler runs: its answer goes out, and the lock is free.
pub(crate) async fn a_lock_that_was_held_is_given_up(case: Case) {
    let mut server = Server::start().await;
    let site = site(&case, &server).await;
    let hold = site.hold("/orders/7/pay").await;
    server.kill();
    server.restart().await;
    comes_back(&site).await;
    let _ = hold.let_go().await.expect(200);
    let _ = site.post("/orders/7/ship").send().await.expect(200);
}

pub(crate) async fn the_worker_goes_on(case: Case) {
    let mut server = Server::start().await;
    let site = site(&case, &server).await;
    runs_what_it_defers(&site).await;
    server.kill();
    away(promptly(site.post("/orders/7/refund")).await);
    server.restart().await;
    comes_back(&site).await;
    runs_what_it_defers(&site).await;
}

/// At once: a worker must not need its next sign of life, up to 5 s later, to be there again.
async fn runs_what_it_defers(site: &Site) {
    let asked = Instant::now();
    let hold = site.hold("/orders/7/pay").await;
    let job = accepted(site.post("/orders/7/refund").send().await);
    let _ = hold.let_go().await.expect(200);
    let _ = job.done(site).await;
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(3), "done after {took:?}");
}

pub(crate) async fn forgotten_scripts_are_sent_again(case: Case) {
    let server = Server::start().await;
    let site = site(&case, &server).await;
    let mut connection = server.connection().await;
    let forget = tokio::spawn(async move {
        loop {
            let mut flush = redis::cmd("SCRIPT");
            let () = flush
                .arg("FLUSH")
                .query_async(&mut connection)
                .await
                .unwrap();
        }
    });
    for round in 0..10 {
        let sent: Vec<_> = (0..8)
            .flat_map(|n| {
                [
                    site.post(&format!("/orders/{round}-{n}/pay")).spawn(),
                    site.get(&format!("/quota/param/{round}-{n}")).spawn(),
                ]
            })
            .collect();
        for answer in sent {
            let answer = answer.answer().await.expect(200);
            let json = answer.json();
            assert!(
                json["fence"].is_u64() || json["remaining"].is_u64(),
                "{answer:?}"
            );
        }
    }
    runs_what_it_defers(&site).await;
    forget.abort();
}

pub(crate) async fn a_wrong_password_is_a_fault_of_the_configuration() {
    let server = Server::with_password("c0rrect").await;
    let _ = Store::connect(&server.url("scenario"))
        .await
        .expect("a store");
    let url = server.url("scenario");
    for wrong in [
        url.replace("c0rrect", "s3cret"),
        url.replace(":c0rrect@", ""),
    ] {
        let error = Store::connect(&wrong).await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Config);
        let told = format!("{error} {error:?}");
        assert!(
            !told.contains("s3cret") && !told.contains("c0rrect"),
            "{told}"
        );
    }
}
