//! Lists of the jobs that wait or run.

use std::time::Duration;

use super::{
    on_every_store,
    rig::{LONG, Rig, again, deferred, key, neighbours, settled, stranger},
};
use crate::{
    Key,
    store::backend::{
        EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState, JobView, OnFailure,
        PendingCursor, Settlement,
    },
};

on_every_store!(
    what_waits_and_what_runs_is_listed,
    pages_of_any_size_tell_each_job_once,
    of_many_lines_each_is_told,
    what_stays_is_told_whatever_comes_and_goes,
    there_are_no_bodies_in_it,
);

/// The pages of so many, and what is in them.
async fn pages(rig: &Rig, most: usize) -> Vec<Vec<(JobId, JobView)>> {
    let (mut from, mut pages) = (Some(PendingCursor::default()), Vec::new());
    while let Some(mark) = from {
        let page = rig.pending(key().shard(), mark, most).await;
        assert!(page.jobs.len() <= most, "{}", page.jobs.len());
        assert!(
            page.next_mark.is_none_or(|next| next > mark || next.scan_cursor != mark.scan_cursor),
            "it goes on"
        );
        from = page.next_mark;
        pages.push(page.jobs);
    }
    pages
}

async fn all(rig: &Rig) -> Vec<(JobId, JobView)> {
    pages(rig, 100).await.concat()
}

fn ids(mut jobs: Vec<(JobId, JobView)>) -> Vec<JobId> {
    jobs.sort_by(|(one, _), (other, _)| one.cmp(other));
    jobs.into_iter().map(|(id, _)| id).collect()
}

async fn what_waits_and_what_runs_is_listed(rig: &Rig) {
    let [one, two, three] = neighbours::<3>();
    assert_eq!(all(rig).await, []);
    let (runs, waits) = (rig.put_off(&one).await, rig.put_off(&one).await);
    let run = stranger();
    rig.start(&one, &runs, &run).await;
    let policy = JobPolicy { delay: LONG, ..deferred(&two).policy };
    let delayed = EnqueueCommand { policy, ..deferred(&two) };
    let late = delayed.id.clone();
    assert_eq!(rig.enqueue(delayed).await, EnqueueOutcome::Stored { position: 0 });
    // One that others may pass while it waits for its retry.
    let call = again(&three);
    let policy = JobPolicy { on_failure: OnFailure::Skip, ..call.policy };
    let (call, failed) = (EnqueueCommand { policy, ..call }, stranger());
    let retried = call.id.clone();
    rig.enqueue(call).await;
    rig.start(&three, &retried, &failed).await;
    let verdict = Settlement::Retry { delay: LONG, reason: "failed" };
    assert!(rig.settle(settled(&three, &retried, &failed, verdict)).await);
    // And two that have ended.
    let (ended, cancelled) = (rig.put_off(&three).await, rig.put_off(&three).await);
    assert_eq!(rig.cancel(&cancelled).await, Some(JobState::Cancelled));
    let run = stranger();
    rig.start(&three, &ended, &run).await;
    assert!(rig.finish(&three, &ended, &run).await);

    let told = all(rig).await;
    assert_eq!(told.len(), 4, "{told:?}");
    for (id, state, position, lock, is_due) in [
        (&runs, JobState::Running, Some(1), &one, true),
        (&waits, JobState::Queued, Some(2), &one, true),
        (&late, JobState::Queued, None, &two, false),
        (&retried, JobState::Queued, None, &three, false),
    ] {
        let (_, job) = told.iter().find(|(other, _)| other == id).expect("it is there");
        assert_eq!((job.state, job.position), (state, position), "{job:?}");
        assert_eq!(job.history.lock.as_ref(), Some(lock));
        assert_eq!(job.history.due_in.is_none(), is_due, "{job:?}");
        // As by its id.
        let alone = rig.job(id).await.expect("it is known");
        assert_eq!(
            (alone.state, alone.position, alone.attempts, &alone.reason),
            (job.state, job.position, job.attempts, &job.reason)
        );
    }
    let (_, job) = told.iter().find(|(other, _)| *other == retried).expect("it is there");
    assert_eq!((job.reason.as_deref(), job.attempts), (Some("failed"), 1));
    let behind = |id| told.iter().position(|(other, _)| other == id);
    assert!(behind(&runs) < behind(&waits), "in the order of their line");
}

async fn pages_of_any_size_tell_each_job_once(rig: &Rig) {
    let keys = neighbours::<4>();
    let mut expected = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        for _ in 0..3 * n {
            expected.push(rig.put_off(key).await);
        }
        let policy = JobPolicy { delay: LONG, ..deferred(key).policy };
        let late = EnqueueCommand { policy, ..deferred(key) };
        expected.push(late.id.clone());
        rig.enqueue(late).await;
    }
    expected.sort();
    for most in [1, 2, 3, 5, 22, 100] {
        let pages = pages(rig, most).await;
        // What is full may be all there is.
        let (last, full) = pages.split_last().expect("one at least");
        assert!(full.iter().all(|page| page.len() == most), "{most}");
        assert!(last.len() <= most);
        assert_eq!(ids(pages.concat()), expected, "by {most}");
    }
    // Another shard has a list of its own.
    let elsewhere = (key().shard() + 1) % 64;
    let none = rig.pending(elsewhere, PendingCursor::default(), 100).await;
    assert_eq!((none.jobs.len(), none.next_mark), (0, None));
}

/// More than a server keeps in one piece, and than one step of its scan finds.
async fn of_many_lines_each_is_told(rig: &Rig) {
    let keys = neighbours::<300>();
    let mut expected = Vec::new();
    for key in &keys {
        let caps = crate::store::backend::StorageLimits::NONE;
        let call = EnqueueCommand { limits: caps, ..deferred(key) };
        expected.push(call.id.clone());
        rig.enqueue(call).await;
    }
    expected.sort();
    for most in [7, 100] {
        assert_eq!(ids(pages(rig, most).await.concat()), expected, "by {most}");
    }
}

async fn what_stays_is_told_whatever_comes_and_goes(rig: &Rig) {
    let keys = neighbours::<8>();
    let put_in = async |keys: &[Key]| {
        let mut ids = Vec::new();
        for key in keys {
            ids.push(rig.put_off(key).await);
        }
        ids
    };
    let goes = put_in(&keys).await;
    let mut stays = put_in(&keys).await;
    let (mut from, mut seen, mut n) = (Some(PendingCursor::default()), Vec::new(), 0);
    while let Some(mark) = from {
        let page = rig.pending(key().shard(), mark, 2).await;
        seen.extend(page.jobs.into_iter().map(|(id, _)| id));
        from = page.next_mark;
        if let Some(id) = goes.get(n) {
            assert_eq!(rig.cancel(id).await, Some(JobState::Cancelled));
            rig.put_off(&keys[n]).await;
            rig.advance(Duration::from_millis(1)).await;
        }
        n += 1;
    }
    stays.retain(|id| !seen.contains(id));
    assert_eq!(stays, [], "all of them were told");
}

async fn there_are_no_bodies_in_it(rig: &Rig) {
    let _ = rig.put_off(&key()).await;
    let [(_, job)] = &all(rig).await[..] else { panic!("one") };
    assert_eq!((&job.response, &job.history.webhook_event), (&None, &None));
}
