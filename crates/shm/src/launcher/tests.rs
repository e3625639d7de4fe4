use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::Signal;

use super::*;

/// Repeats `step` until it gives something; the limit is a guard against hanging, not a promise.
fn eventually<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = step() {
            return value;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "never came: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn client(server: &Server, rank: u32) -> Client {
    Client::connect_to(server.address().as_bytes(), Rank(rank)).unwrap()
}

fn ranks(server: &Server) -> Vec<u32> {
    server.connected().map(|(rank, _)| rank.0).collect()
}

fn stranger(server: &Server) -> OwnedFd {
    let socket = socket().unwrap();
    let address = SocketAddrUnix::new_abstract_name(server.address().as_bytes()).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

#[test]
fn notices_reach_the_connected_and_the_late_in_order() {
    let mut server = Server::listen(4).unwrap();
    let mut early = client(&server, 1);
    server.serve();
    server.serve();
    assert_eq!(ranks(&server), [1]);
    assert_eq!(early.read_notices(), Notices::default());

    let ended =
        vec![(Rank(3), Ending::Signalled(9)), (Rank(0), Ending::Exited(-1)), (Rank(2), Ending::Exited(i32::MAX))];
    for &(rank, ending) in &ended {
        server.announce(rank, ending);
    }
    let all = Notices { ended, launcher_gone: false };
    assert_eq!(early.read_notices(), all);
    assert_eq!(early.read_notices(), Notices::default());

    let mut late = client(&server, 2);
    server.serve();
    server.serve();
    assert_eq!(late.read_notices(), all);
}

#[test]
fn the_end_of_the_launcher_is_seen_and_stays_so() {
    let mut server = Server::listen(2).unwrap();
    let mut rank = client(&server, 0);
    server.serve();
    server.serve();
    server.announce(Rank(1), Ending::Exited(7));
    drop(server);
    let last = Notices { ended: vec![(Rank(1), Ending::Exited(7))], launcher_gone: true };
    assert_eq!(rank.read_notices(), last);
    assert_eq!(rank.read_notices(), Notices { ended: Vec::new(), launcher_gone: true });
}

#[test]
fn a_launcher_that_ends_before_it_accepts_is_gone_too() {
    let server = Server::listen(2).unwrap();
    let mut rank = client(&server, 0);
    drop(server);
    assert!(rank.read_notices().launcher_gone);
}

#[test]
fn each_job_has_its_own_address_and_id() {
    let (one, two) = (Server::listen(2).unwrap(), Server::listen(2).unwrap());
    assert_ne!(one.address(), two.address());
    assert_ne!(one.job(), two.job());
    assert_eq!(one.job().len(), 32);
    assert!(one.address().len() <= MAX_ADDRESS_BYTES);
}

#[test]
fn addresses_that_are_none_are_refused_with_their_variable() {
    let long = [b'x'; MAX_ADDRESS_BYTES + 1];
    for address in [&b""[..], &long, b"foldcast-launcher-nobody-listens-here"] {
        let error = Client::connect_to(address, Rank(3)).unwrap_err().to_string();
        assert!(error.contains(LAUNCHER_VARIABLE), "{error}");
    }
    let error = Client::connect_to(b"foldcast-launcher-nobody-listens-here", Rank(3)).unwrap_err();
    assert!(matches!(error, Error::Resource(_)) && error.to_string().contains("rank 3"), "{error}");
}

#[test]
fn the_launcher_ignores_garbage() {
    let mut server = Server::listen(2).unwrap();
    let socket = stranger(&server);
    let mut long = hello(Rank(1)).to_vec();
    long.push(0);
    let mut other_version = hello(Rank(1));
    other_version[MAGIC.len() - 1] = b'9';
    let packets: [&[u8]; 6] = [b"x", &[0xff; 4096], &long, &other_version, &hello(Rank(2)), &hello(Rank(u32::MAX))];
    for packet in packets {
        rustix::net::send(&socket, packet, SendFlags::DONTWAIT).unwrap();
        server.serve();
        server.serve();
        assert_eq!(ranks(&server), []);
    }
    // The connection is not lost for it: a rank that is heard must not believe its launcher to be gone.
    rustix::net::send(&socket, &hello(Rank(1)), SendFlags::DONTWAIT).unwrap();
    rustix::net::send(&socket, &hello(Rank(0)), SendFlags::DONTWAIT).unwrap();
    server.serve();
    assert_eq!(ranks(&server), [1], "the first hello counts");
    drop(socket);
    server.serve();
    assert_eq!(ranks(&server), []);
}

#[test]
fn a_rank_ignores_garbage() {
    let flags = SocketFlags::CLOEXEC;
    let (socket, launcher) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let mut rank = Client { socket, gone: false };
    let valid = notice(Rank(5), Ending::Signalled(11));
    let mut long = valid.to_vec();
    long.push(0);
    let mut other_cause = valid;
    other_cause[MAGIC.len()] = 4;
    let packets: [&[u8]; 5] = [b"x", &[0; 4096], &long, &valid[1..], &other_cause];
    for packet in packets {
        rustix::net::send(&launcher, packet, SendFlags::DONTWAIT).unwrap();
    }
    assert_eq!(rank.read_notices(), Notices::default());
    rustix::net::send(&launcher, &valid, SendFlags::DONTWAIT).unwrap();
    assert_eq!(rank.read_notices().ended, [(Rank(5), Ending::Signalled(11))]);
}

#[test]
fn a_rank_that_does_not_read_gets_everything_when_it_does() {
    let mut server = Server::listen(MAX_RANKS).unwrap();
    let mut rank = client(&server, 0);
    server.serve();
    server.serve();
    let count = u32::try_from(MAX_RANKS).unwrap();
    for ended in 0..count {
        server.announce(Rank(ended), Ending::Exited(1));
    }
    let sent = server.connections.values().next().unwrap().sent;
    assert!(sent < MAX_RANKS, "the socket takes so much that this test tests nothing");
    let mut seen = Vec::new();
    eventually("every notice", || {
        seen.extend(rank.read_notices().ended.iter().map(|(rank, _)| rank.0));
        server.serve();
        (seen.len() >= MAX_RANKS).then_some(())
    });
    assert!(seen.iter().copied().eq(0..count));
}

#[test]
fn connections_beyond_the_limit_wait_for_others_to_end() {
    let mut server = Server::listen(1).unwrap();
    let limit = 4 + TURN;
    let mut clients: Vec<Client> = (0..limit + 2).map(|_| client(&server, 0)).collect();
    for _ in 0..4 {
        server.serve();
    }
    assert_eq!(ranks(&server).len(), limit);
    clients.drain(..10);
    eventually("the rest to be connected", || {
        server.serve();
        (ranks(&server).len() == limit - 8).then_some(())
    });
}

/// Not a test: what the tests below run in a process of its own.
#[test]
#[ignore = "a helper of other tests"]
#[allow(clippy::print_stdout, reason = "the way to tell the test")]
fn helper_process() {
    match std::env::var("HELPER_MODE").as_deref() {
        Ok("rank") => {
            let mut client = Client::connect(Rank(1)).unwrap().unwrap();
            println!("pid={}", std::process::id());
            eventually("the end of the launcher", || client.read_notices().launcher_gone.then_some(()));
            die_with_launcher();
        }
        Ok("stranger") => {
            let address = std::env::var(LAUNCHER_VARIABLE).unwrap();
            let socket = socket().unwrap();
            rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(address.as_bytes()).unwrap()).unwrap();
            let _ = rustix::net::send(&socket, &hello(Rank(1)), SendFlags::NOSIGNAL);
            let answer = rustix::net::recv(&socket, &mut [0; 64], RecvFlags::empty());
            println!("closed={}", matches!(answer, Ok((0, _)) | Err(Errno::CONNRESET)));
            println!("error={}", Client::connect(Rank(1)).unwrap_err());
        }
        _ => {}
    }
}

fn helper(server: &Server, mode: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "\"$0\" \"$@\"; exit $?"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "launcher::tests::helper_process", "--ignored", "--nocapture"])
        .env(LAUNCHER_VARIABLE, server.address())
        .env("HELPER_MODE", mode)
        .stderr(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// Serves until the helper has ended; its output and status.
fn serve_until_end(server: &mut Server, mut child: Child) -> (String, std::process::ExitStatus) {
    let status = eventually("the end of the helper", || {
        server.serve();
        child.try_wait().unwrap()
    });
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    (output, status)
}

#[test]
fn a_process_behind_a_shell_is_known_by_its_pid_and_ends_with_the_launcher() {
    let mut server = Server::listen(2).unwrap();
    let mut child = helper(&server, "rank").spawn().unwrap();
    let (rank, pid) = eventually("the rank", || {
        server.serve();
        server.connected().next()
    });
    assert_eq!(rank, Rank(1));
    assert_ne!(pid.as_raw_nonzero().get().unsigned_abs(), child.id(), "the shell stands between");
    drop(server);
    let status = eventually("the end of the shell", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(128 + 9), "the shell tells that SIGKILL ended the rank");
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(output.contains(&format!("pid={}\n", pid.as_raw_nonzero())), "{output}");
}

#[test]
fn other_users_are_refused_by_both_sides() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED other_users_are_refused_by_both_sides: only root can become another user");
        return;
    }
    let mut server = Server::listen(2).unwrap();
    let child = helper(&server, "stranger").uid(65_534).spawn().unwrap();
    let (output, _) = serve_until_end(&mut server, child);
    assert!(output.contains("closed=true"), "{output}");
    assert!(output.contains("another user listens"), "{output}");
    assert_eq!(ranks(&server), []);
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdout(Stdio::piped());
    command
}

#[test]
fn signals_arrive_at_the_descriptor_and_children_do_not_inherit_the_mask() {
    let mut signals = Signals::take(&[Signal::USR2, Signal::INT]).unwrap();
    assert_eq!(signals.next_arrival(), None);
    // SAFETY: raise only sends, and to this thread; the test's process has others, which have not blocked the signal.
    assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
    let arrival = eventually("the signal", || signals.next_arrival().filter(|arrival| arrival.signal != libc::SIGCHLD));
    assert_eq!(arrival, Arrival { signal: libc::SIGUSR2, from_kernel: false, was_ignored: false });

    let mut child = spawn(shell("kill -s INT $$; sleep 60"), true, &signals).unwrap();
    let status = eventually("the end of the child", || child.try_wait().unwrap());
    assert_eq!(status.signal(), Some(libc::SIGINT));
}

#[test]
fn a_spawned_process_dies_with_the_thread_that_spawned_it() {
    let spawning = thread::spawn(|| {
        let signals = Signals::take(&[]).unwrap();
        spawn(shell("echo started; exec sleep 1000"), true, &signals).unwrap()
    });
    let mut child = spawning.join().unwrap();
    let status = eventually("the end of the child", || child.try_wait().unwrap());
    assert_eq!(status.signal(), Some(libc::SIGKILL));
}

#[test]
fn a_spawned_process_leads_a_group_only_if_asked_to() {
    let signals = Signals::take(&[]).unwrap();
    for own_group in [true, false] {
        let mut child = spawn(shell("cut -d' ' -f5 /proc/$$/stat"), own_group, &signals).unwrap();
        let pid = child.id().to_string();
        let mut group = String::new();
        child.stdout.take().unwrap().read_to_string(&mut group).unwrap();
        child.wait().unwrap();
        assert_eq!(group.trim() == pid, own_group, "group {group} of process {pid}");
    }
}

#[test]
fn a_program_that_is_not_there_is_told_from_one_that_may_not_run() {
    let signals = Signals::take(&[]).unwrap();
    let missing = spawn(Command::new("/nonexistent/program"), true, &signals).unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    let directory = spawn(Command::new("/"), true, &signals).unwrap_err();
    assert_eq!(directory.kind(), std::io::ErrorKind::PermissionDenied);
}
