//! The status resource of deferred requests.

use std::time::{Duration, Instant};

use lockgate::{
    JobId, JobState, Key, Keyring,
    admin::{Operator, Permission},
    defer::{JobCursor, RetainedRequest},
};
use lockgate_tests::{TestCase, TestResponse, TestSite};
use serde_json::Value;

use super::{
    JobReceipt, MAX_RELEASE_DELAY, defer::defer_refund, expect_accepted, lock::expect_busy,
};

pub(crate) async fn queue_positions_move_up(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let (first, second) = (defer_refund(&site, "").await, defer_refund(&site, "").await);
    let third = defer_refund(&site, "").await;
    assert_eq!(third.status_document(&site).await["position"], 3);
    let answer = site.delete(&first.location).send().await.expect_status(204);
    assert!(answer.body.is_empty());
    assert_eq!(second.status_document(&site).await["position"], 1);
    assert_eq!(third.status_document(&site).await["position"], 2);
    let document = first.status_document(&site).await;
    assert_eq!(document["state"], "cancelled", "{document}");
    assert!(document["position"].is_null(), "{document}");
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn long_poll_ends_when_state_changes(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "gate=run").await;
    let wait = |site: &TestSite| site.get(&job.location).header("prefer", "wait=15").spawn();
    let waiting = [wait(&site), wait(&other)];
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    // A long poll that starts while the job runs ends with the run; an earlier one ends with its
    // start.
    let started = Instant::now();
    case.handler.sync_points.open("run");
    for waiting in waiting {
        let answer = waiting.response().await.expect_status(200);
        assert_eq!(answer.header("preference-applied"), "wait=15");
        assert_ne!(answer.json()["state"], "queued", "{answer:?}");
    }
    let _ = job.wait_until_done(&site).await;
    let elapsed = started.elapsed();
    assert!(elapsed < MAX_RELEASE_DELAY, "answered after {elapsed:?}");
    // The state is final, so the response is immediate.
    assert_eq!(wait(&site).response().await.expect_status(200).json()["state"], "done");
}

pub(crate) async fn long_poll_ends_when_run_ends(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "gate=run").await;
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    let wait = |site: &TestSite, what: &str| {
        let request = site.get(&format!("{}{what}", job.location));
        request.header("prefer", "wait=15").spawn()
    };
    let waiting = [wait(&site, ""), wait(&other, "")];
    let response = wait(&other, "/response");
    let started = Instant::now();
    case.handler.sync_points.open("run");
    for waiting in waiting {
        assert_eq!(waiting.response().await.expect_status(200).json()["state"], "done");
    }
    let answer = response.response().await.expect_status(200);
    assert_eq!(answer.json()["deferred"]["id"], job.id);
    let elapsed = started.elapsed();
    assert!(elapsed < MAX_RELEASE_DELAY, "answered after {elapsed:?}");
}

pub(crate) async fn zero_or_invalid_wait_returns_at_once(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "").await;
    let started = Instant::now();
    for prefer in ["wait=0", "respond-async, wait=0", "wait=soon", "wait"] {
        let answer = site.get(&job.location).header("prefer", prefer).send().await;
        assert_eq!(answer.expect_status(200).json()["state"], "queued");
    }
    // Each wait would have lasted 30 s.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn cancelled_job_never_runs(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let job = defer_refund(&site, "tag=cancelled").await;
    // Cancellation is idempotent.
    let cancellations = [&site, &other].map(|site| site.delete(&job.location).spawn());
    for cancelled in cancellations {
        let _ = cancelled.response().await.expect_status(204);
    }
    let next = defer_refund(&site, "tag=next").await;
    let _ = hold.finish().await.expect_status(200);
    let _ = next.wait_until_done(&site).await;
    let _ = site.post("/orders/7/pay?tag=last").send().await.expect_status(200);
    assert_eq!(case.handler.run_tags(), ["hold", "next", "last"]);
    let response = format!("{}/response", job.location);
    let problem = site.get(&response).send().await.expect_status(410).problem_document();
    assert_eq!(problem["state"], "cancelled");
    assert_eq!(problem["type"], "urn:lockgate:problem:no-response");
}

/// Returns the documents of an ended event stream and the ids of its events.
fn parse_events(answer: &TestResponse) -> (Vec<String>, Vec<Value>) {
    assert_eq!(answer.header("content-type"), "text/event-stream", "{answer:?}");
    assert_eq!(answer.header("cache-control"), "no-store", "{answer:?}");
    let text = answer.text();
    let lines = |mark| text.lines().filter_map(move |line: &str| line.strip_prefix(mark));
    let documents = lines("data: ").map(|data| serde_json::from_str(data).expect("JSON"));
    (lines("id: ").map(str::to_owned).collect(), documents.collect())
}

pub(crate) async fn state_changes_are_sent_as_events(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "gate=run").await;
    let stream = |site: &TestSite| site.get(&job.location).header("accept", "text/event-stream");
    let mut raw_streams = [site.raw_connection().await, other.raw_connection().await];
    for raw in &mut raw_streams {
        let target = &job.location;
        raw.write(&format!(
            "GET {target} HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n"
        ))
        .await;
        let _ = raw.read_until("\"queued\"").await;
    }
    let event_streams = [stream(&site).spawn(), stream(&other).spawn()];
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    // Each change is sent, not only the last one.
    for raw in &mut raw_streams {
        let _ = raw.read_until("\"running\"").await;
    }
    case.handler.sync_points.open("run");
    let ended = Instant::now();
    for raw in &mut raw_streams {
        let _ = raw.read_until("\"done\"").await;
    }
    for event_streams in event_streams {
        let (ids, documents) = parse_events(&event_streams.response().await.expect_status(200));
        let last = documents.last().expect("an event");
        assert_eq!((&last["state"], &last["id"]), (&"done".into(), &(&*job.id).into()));
        assert_eq!(last["response"]["status"], 200);
        assert_eq!(ids.len(), documents.len());
        // A reconnect with the id of the last event gets no further event.
        let reconnect = stream(&site).header("last-event-id", &ids[ids.len() - 1]);
        assert!(reconnect.send().await.expect_status(204).body.is_empty());
    }
    let elapsed = ended.elapsed();
    assert!(elapsed < MAX_RELEASE_DELAY, "answered after {elapsed:?}");
    let (_, documents) = parse_events(&stream(&site).send().await.expect_status(200));
    assert_eq!(documents.len(), 1, "an ended job has one event: {documents:?}");
}

pub(crate) async fn event_stream_ends_with_its_client(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "").await;
    let mut raw = site.raw_connection().await;
    let head =
        format!("GET {} HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n", job.location);
    raw.write(head).await;
    let _ = raw.read_until("\"queued\"").await;
    drop(raw);
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_done(&site).await;
    // A shutdown waits for open responses.
    let stopped = Instant::now();
    site.stop().await;
    let elapsed = stopped.elapsed();
    assert!(elapsed < MAX_RELEASE_DELAY, "something was open for {elapsed:?}");
}

pub(crate) async fn unchanged_document_is_304(case: TestCase) {
    let (site, other) = (case.start_site().await, case.start_site().await);
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "gate=run").await;
    // Until the worker's first heartbeat, the document reports that there is no worker.
    job.wait_for_status(&site, |document| document.get("worker").is_none()).await;
    let first = site.get(&job.location).send().await.expect_status(200);
    let _ = first.retry_after_seconds();
    let tag = first.header("etag").to_owned();
    let conditional_get = |site: &TestSite| site.get(&job.location).header("if-none-match", &tag);
    let unchanged = conditional_get(&other).send().await.expect_status(304);
    assert_eq!(unchanged.header("etag"), tag, "each process makes the same of it");
    assert!(unchanged.body.is_empty());
    let head = site.request("HEAD", &job.location).send().await.expect_status(200);
    assert_eq!((head.header("etag"), head.body.len()), (&*tag, 0));
    let waiting = conditional_get(&other).header("prefer", "wait=15").spawn();
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    let started = Instant::now();
    assert_ne!(waiting.response().await.expect_status(200).json()["state"], "queued");
    // The document has changed already, so the long poll ends at once.
    let answer = conditional_get(&site).header("prefer", "wait=15").send().await.expect_status(200);
    assert_eq!(answer.json()["state"], "running");
    let elapsed = started.elapsed();
    assert!(elapsed < MAX_RELEASE_DELAY, "answered after {elapsed:?}");
    case.handler.sync_points.open("run");
    let _ = job.wait_until_done(&site).await;
}

pub(crate) async fn running_and_done_jobs_cannot_be_cancelled(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "gate=run").await;
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    let problem = site.delete(&job.location).send().await.expect_status(409).problem_document();
    assert_eq!(problem["state"], "running");
    case.handler.sync_points.open("run");
    let _ = job.wait_until_done(&site).await;
    let problem = site.delete(&job.location).send().await.expect_status(409).problem_document();
    assert_eq!(problem["state"], "done");
}

/// The client may not cancel a run, and an operator of another process may. The handler stops in
/// order, and the lock goes to the next request.
pub(crate) async fn operator_cancels_a_run(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay?tag=hold").await;
    let job = defer_refund(&site, "stops=run&tag=stopped").await;
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;
    let _ = site.delete(&job.location).send().await.expect_status(409);
    let admin = case.new_store().await.admin(Operator::new("ada", Permission::Act));
    let id: JobId = job.id.parse().expect("an id");
    for _ in 0..2 {
        admin.cancel_job(&id, "a test").await.expect("the worker answers");
        assert_eq!(job.status_document(&site).await["state"], "cancelled");
    }
    let _ = site.post("/orders/7/pay?tag=next").send().await.expect_status(200);
    let _ = site.delete(&job.location).send().await.expect_status(204);
    case.handler.sync_points.open("run");
    assert_eq!(case.handler.run_tags(), ["hold", "next"]);
}

/// The only run slot is taken, so the lock stays offered to the job.
pub(crate) async fn offered_job_can_be_cancelled(case: TestCase) {
    let site = case.site_builder().await.concurrency(1).start().await;
    let hold = site.post_held("/orders/8/pay").await;
    let long_job = expect_accepted(site.post("/orders/8/refund?gate=long").send().await);
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("long").await;

    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "tag=cancelled").await;
    let _ = hold.finish().await.expect_status(200);
    let _ = site.delete(&job.location).send().await.expect_status(204);
    let _ = site.post("/orders/7/pay").send().await.expect_status(200);
    case.handler.sync_points.open("long");
    let _ = long_job.wait_until_done(&site).await;
    assert!(!case.handler.run_tags().contains(&"cancelled".to_owned()));
}

pub(crate) async fn invalid_ids_are_answered_alike(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "").await;
    let upper = job.id.to_uppercase();
    let (too_long, too_short) = (format!("{}0", job.id), &job.id[1..]);
    let other_shard = format!("ff{}", &job.id[2..]);
    let guessed = [
        "00112233445566778899aabbccddeeff00",
        &upper,
        &too_long,
        too_short,
        &other_shard,
        "x",
        "%00",
        "%ff",
        "..%2F..",
    ];
    let mut answers = Vec::new();
    for id in guessed {
        for target in [format!("/deferred/{id}"), format!("/deferred/{id}/response")] {
            answers.push(site.get(&target).send().await.expect_status(404));
        }
        answers.push(site.delete(&format!("/deferred/{id}")).send().await.expect_status(404));
    }
    let first = answers[0].problem_document();
    assert!(answers.iter().all(|answer| answer.problem_document() == first), "{answers:?}");
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn job_is_visible_only_to_its_owner(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let sent = site.post("/owned/7").header("x-user", "ada");
    let job = expect_accepted(sent.send().await);
    assert_eq!(job.location, format!("/own-jobs/{}", job.id));
    let response = format!("{}/response", job.location);
    let found = format!("/found/{}", job.id);
    let unknown = site.get("/own-jobs/00112233445566778899aabbccddeeff00").send().await;
    for target in [&job.location, &response, &found] {
        let stream = || site.get(target).header("accept", "text/event-stream");
        for request in [site.get(target), stream()] {
            for request in [request.clone(), request.header("x-user", "bob")] {
                let answer = request.send().await.expect_status(404);
                assert_eq!(answer.body, unknown.body);
            }
        }
    }
    let bob = site.delete(&job.location).header("x-user", "bob");
    let _ = bob.send().await.expect_status(404);
    for target in [&job.location, &found] {
        let ada = site.get(target).header("x-user", "ada");
        assert_eq!(ada.send().await.expect_status(200).json()["state"], "queued");
    }
    let ada = site.delete(&job.location).header("x-user", "ada");
    let _ = ada.send().await.expect_status(204);
    let stream = || site.get(&job.location).header("accept", "text/event-stream");
    let (_, documents) =
        parse_events(&stream().header("x-user", "ada").send().await.expect_status(200));
    assert_eq!(documents[0]["state"], "cancelled");
    assert_eq!(stream().header("x-user", "bob").send().await.expect_status(404).body, unknown.body);
    expect_busy(site.post("/orders/7/pay").send().await);
    let _ = hold.finish().await.expect_status(200);
}

pub(crate) async fn other_methods_are_405(case: TestCase) {
    let site = case.start_site().await;
    let id = "/deferred/00112233445566778899aabbccddeeff00";
    let answer = site.post(id).send().await.expect_status(405);
    assert_eq!(answer.header("allow"), "GET, HEAD, DELETE");
    let _ = answer.problem_document();
    let answer = site.delete(&format!("{id}/response")).send().await.expect_status(405);
    assert_eq!(answer.header("allow"), "GET, HEAD");
}

/// Uses the store of the site, as an administration page would.
pub(crate) async fn dead_letters_can_be_redriven_and_purged(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let job = defer_refund(&site, "panic=1&tag=dead").await;
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_dead(&site, "panicked").await;
    let other = case.new_store().await;
    let jobs = other.deferred_jobs();
    let page = jobs.dead(JobCursor::default(), 10).await.expect("the store is there");
    let [dead] = &page.jobs[..] else { panic!("one: {page:?}") };
    assert_eq!((dead.id.as_str(), dead.attempts, page.next), (&*job.id, 1, None));
    let head = jobs.peek(&dead.id).await.expect("the store is there").expect("it is stored");
    assert_eq!((&*head.method, &*head.path), ("POST", "/orders/7/refund"));
    let stats = jobs.stats().await.expect("the store is there");
    assert_eq!((stats.dead, stats.pending), (1, 0), "{stats:?}");

    jobs.pause().await.expect("the store is there");
    assert_eq!(jobs.redrive_all(Duration::ZERO).await.expect("the store is there"), 1);
    let document = job.status_document(&site).await;
    assert_eq!(document["state"], "queued", "{document}");
    let runs = case.handler.run_tags().len();
    jobs.resume().await.expect("the store is there");
    let _ = job.wait_until_dead(&site, "panicked").await;
    assert_eq!(case.handler.run_tags().len(), runs + 1, "it ran again, once");
    assert_eq!(jobs.purge_dead(Duration::ZERO).await.expect("the store is there"), 1);
    let _ = site.get(&job.location).send().await.expect_status(410).problem_document();
}

/// The request body is readable only with the sealing key, and only until its retention ends.
pub(crate) async fn dead_letter_request_can_be_read(case: TestCase) {
    let ring = || Keyring::new("one", [7; 32]).require_sealed();
    let site = case.start_site().await;
    let _sealed = site.store().clone().with_keyring(ring());
    let hold = site.post_held("/orders/7/pay").await;
    let sent = site.post("/orders/7/refund?panic=1&a=b").header("x-note", "two");
    let job = expect_accepted(sent.body("note").send().await);
    let done_job = defer_refund(&site, "").await;
    let _ = hold.finish().await.expect_status(200);
    let _ = job.wait_until_dead(&site, "panicked").await;
    let _ = done_job.wait_until_done(&site).await;

    let id = |job: &JobReceipt| job.id.parse::<JobId>().expect("an id");
    let jobs_with_key = case.new_store().await.with_keyring(ring()).deferred_jobs();
    let retained = jobs_with_key.request(&id(&job)).await.expect("the store is there");
    assert_eq!(format!("{retained:?}"), r#"Whole(JobRequest { method: "POST", bytes: 4, .. })"#);
    let request = retained.into_request().expect("it is whole");
    assert_eq!((&*request.method, &*request.target), ("POST", "/orders/7/refund?panic=1&a=b"));
    assert_eq!(&request.body[..], b"note");
    let note = ("x-note".to_owned(), b"two".to_vec());
    assert!(request.headers.contains(&note), "{:?}", request.headers);
    let unknown = "00112233445566778899aabbccddeeff00".parse::<JobId>().expect("an id");
    for (jobs, id, expected) in [
        (case.new_store().await.deferred_jobs(), id(&job), RetainedRequest::MissingKey),
        (jobs_with_key.clone(), id(&done_job), RetainedRequest::NotRetained),
        (jobs_with_key.clone(), unknown, RetainedRequest::Unknown),
    ] {
        assert_eq!(jobs.request(&id).await.expect("the store is there"), expected);
    }
}

/// Another process lists the running, queued and delayed jobs page by page.
pub(crate) async fn pending_jobs_are_listed_by_page(case: TestCase) {
    let site = case.start_site().await;
    let hold = site.post_held("/orders/7/pay").await;
    let first = defer_refund(&site, "gate=run").await;
    let second = defer_refund(&site, "").await;
    let delayed = expect_accepted(site.post("/delayed/7").send().await);
    let _ = hold.finish().await.expect_status(200);
    case.handler.sync_points.wait_for_arrival("run").await;

    let jobs = case.new_store().await.deferred_jobs();
    let (mut next, mut listed) = (Some(JobCursor::default()), Vec::new());
    while let Some(from) = next {
        let from = from.to_string().parse().expect("a cursor");
        let jobs = jobs.clone();
        let page = tokio::spawn(async move { jobs.pending(from, 1).await });
        let page = page.await.expect("it ends").expect("the store is there");
        assert!(page.jobs.len() <= 1, "{page:?}");
        listed.extend(page.jobs);
        next = page.next;
    }
    let find = |job: &JobReceipt| {
        listed.iter().find(|info| info.id.as_str() == job.id).expect("it is there")
    };
    assert_eq!((find(&first).state, find(&first).position), (JobState::Running, Some(1)));
    assert_eq!((find(&second).state, find(&second).position), (JobState::Queued, Some(2)));
    assert!(find(&second).lock == Some(Key::path_param("id", "7")));
    assert!(find(&delayed).state.is_pending());
    case.handler.sync_points.open("run");
    for job in [&first, &second, &delayed] {
        let _ = job.wait_until_done(&site).await;
    }
    // A job that becomes due between two pages is listed twice.
    listed.retain(|info| info.id.as_str() != delayed.id);
    assert_eq!(listed.len(), 2, "{listed:?}");
    let page = jobs.pending(JobCursor::default(), 100).await.expect("the store is there");
    assert_eq!((page.jobs.len(), page.next), (0, None));
}
