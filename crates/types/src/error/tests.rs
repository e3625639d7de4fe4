use super::*;
use crate::call::Tag;

fn site() -> CallSite {
    CallSite { rank: Rank(0), op: "allreduce", tag: Some(Tag::Unnamed(7)), group: GroupName::world() }
}

#[test]
fn causes_round_trip() {
    let endings = [Ending::Exited(-1), Ending::Signalled(9), Ending::Left(1 << 40), Ending::Unknown];
    for ending in endings {
        let cause = Cause::RankDied { peer: Rank(3), ending };
        assert_eq!(Cause::decode(&cause.encode()), Some(cause));
    }
    let rest = [
        Cause::Deadline { by: Rank(1), peer: Rank(2) },
        Cause::Interrupted { by: Rank(1) },
        Cause::Requested { by: Rank(1) },
        Cause::Failed { by: Rank(4) },
        Cause::Shrunk { by: Rank(2) },
    ];
    for cause in rest {
        assert_eq!(Cause::decode(&cause.encode()), Some(cause));
    }
    assert_eq!(Cause::decode(&[0; Cause::ENCODED_BYTES]), None);
    assert_eq!(Cause::decode(&[0xff; Cause::ENCODED_BYTES]), None);
}

#[test]
fn what_the_system_refuses_is_refused_to_a_rank() {
    let error = Error::resource("a thread", "EAGAIN", "raise the limit").met_by(Rank(3));
    assert_eq!(error.to_string(), "rank 3: could not get a thread: EAGAIN; raise the limit");
    assert!(error.met_by(Rank(4)).to_string().starts_with("rank 3"), "the first counts");
}

#[test]
fn a_mismatch_names_every_rank_once() {
    let error = Error::Mismatch(Box::new(Mismatch {
        site: site(),
        field: "count",
        peer: Rank(2),
        expected: "4".into(),
        got: "3".into(),
        values: vec![(Rank(0), "4".into()), (Rank(1), "4".into()), (Rank(2), "3".into())],
        detail: "only rank 2 has 'x'".into(),
        elapsed: Duration::from_millis(2),
    }));
    assert_eq!(
        error.to_string(),
        "rank 0: allreduce #7 on group 'hccl_world_group': the ranks disagree in count: rank 0, rank 1: 4; rank 2: 3 \
         (after 0.002 s); only rank 2 has 'x'; nothing was done and the group stays usable: make the ranks call with the \
         same arguments"
    );
}

/// The ranks that an error is about. No kind is left out, and none has a rank that may be missing: either would not compile.
fn about(error: &Error) -> Vec<Rank> {
    fn sure(site: &CallSite, peer: Rank) -> Vec<Rank> {
        let CallSite { rank, .. } = *site;
        vec![rank, peer]
    }
    let by = |cause: &Cause| match *cause {
        Cause::RankDied { peer, .. } => peer,
        Cause::Deadline { by, .. }
        | Cause::Interrupted { by }
        | Cause::Requested { by }
        | Cause::Failed { by }
        | Cause::Shrunk { by } => by,
    };
    match error {
        Error::Mismatch(e) => sure(&e.site, e.peer),
        Error::RankDied(e) => sure(&e.site, e.peer),
        Error::Deadline(e) => [&[e.site.rank], e.peers.as_slice()].concat(),
        Error::GroupAborted(e) => sure(&e.site, by(&e.cause)),
        Error::NotInGroup(e) => vec![e.rank],
        // No other rank has to do with these.
        Error::InvalidArgument(_) | Error::ForkedProcess { .. } | Error::Closed { .. } | Error::Resource(_) => {
            Vec::new()
        }
    }
}

#[test]
fn lmdeploy_3354_an_error_that_is_about_a_rank_always_names_it() {
    let elapsed = Duration::from_secs(3);
    let cause = |cause| Error::GroupAborted(Box::new(GroupAborted { site: site(), cause, elapsed }));
    let ending = Ending::Unknown;
    let errors = [
        Error::Deadline(Box::new(Deadline {
            site: site(),
            peers: vec![Rank(2), Rank(31)],
            awaited: "enter the call".into(),
            limit: elapsed,
            elapsed,
            detail: String::new(),
        })),
        // Also where it is not known how it ended.
        Error::RankDied(Box::new(RankDied { site: site(), peer: Rank(31), ending, elapsed })),
        cause(Cause::RankDied { peer: Rank(31), ending }),
        cause(Cause::Deadline { by: Rank(31), peer: Rank(2) }),
        cause(Cause::Interrupted { by: Rank(31) }),
        cause(Cause::Requested { by: Rank(31) }),
        cause(Cause::Failed { by: Rank(31) }),
        cause(Cause::Shrunk { by: Rank(31) }),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(about(&error).contains(&Rank(31)));
        for rank in about(&error) {
            assert!(text.contains(&rank.to_string()), "{rank} is not named in: {text}");
        }
    }
}

#[test]
fn a_death_says_who_and_how() {
    let error = Error::RankDied(Box::new(RankDied {
        site: site(),
        peer: Rank(3),
        ending: Ending::Signalled(9),
        elapsed: Duration::from_millis(12),
    }));
    let text = error.to_string();
    assert!(text.contains("rank 3 was killed by signal 9 (SIGKILL)") && text.contains("0.012 s"), "{text}");
}
