//! Whoever sends nonsense, half of something, or nothing gets no more than an error; the others a named one, or nothing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use types::digest;

use crate::harness::{Launcher, Rank, Start, new_key, world};
use crate::meetings::{await_connections, hub_address, hub_name};

/// Of the protocol.
const VERSION: u32 = 2;
const HELLO: u32 = 1;
const ACCEPTED: u32 = 2;
const WELCOME: u32 = 3;
const ROSTER: u32 = 4;
const ASK: u32 = 6;
/// As what stands for a life.
const PIDFD: u32 = 1;
const PIPE: u32 = 2;

fn socket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// A connection; waits until somebody listens there.
fn connect(address: &SocketAddrUnix) -> OwnedFd {
    for _ in 0..4_000 {
        let socket = socket();
        if rustix::net::connect(&socket, address).is_ok() {
            return socket;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("nobody listens there");
}

fn packet(kind: u32, words: &[u32]) -> Vec<u8> {
    let words = [VERSION, kind].into_iter().chain(words.iter().copied()).flat_map(u32::to_le_bytes);
    b"FCST".iter().copied().chain(words).collect()
}

fn hello(key: &str, rank: u32, size: u32, life: u32) -> Vec<u8> {
    let address = b"nowhere";
    let mut bytes = packet(HELLO, &[rank, size, std::process::id()]);
    bytes.extend(digest(2, key.as_bytes()).to_le_bytes());
    bytes.extend(life.to_le_bytes());
    bytes.extend(u32::try_from(address.len()).unwrap().to_le_bytes());
    bytes.extend(address);
    bytes
}

fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    // Whoever has hung up already needs no more nonsense.
    let _ = rustix::net::sendmsg(socket, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
}

/// Something that is no process: always readable.
fn regular_file() -> OwnedFd {
    std::fs::File::open("/proc/self/maps").unwrap().into()
}

/// Something that is never readable while this is kept: a life that lasts.
fn quiet_pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe().unwrap()
}

/// A packet in every stage of being there, and what is no packet.
fn nonsense(whole: &[u8]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = (1..whole.len()).step_by(3).map(|len| whole[..len].to_vec()).collect();
    all.extend([b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0xff; 40_000], [whole, b"x"].concat()]);
    all.extend((12..whole.len()).step_by(4).map(|at| {
        let mut bytes = whole.to_vec();
        bytes[at..].iter_mut().take(4).for_each(|byte| *byte = 0xff);
        bytes
    }));
    all
}

#[test]
fn a_hub_hears_nonsense_and_half_of_a_hello_and_goes_on() {
    let key = new_key();
    let mut hub = Start::new(&key, 0, 3).spawn();
    let whole = hello(&key, 2, 3, PIPE);
    let mut kept = Vec::new();
    // Job, kind of life and length of the address: with these it is a hello, whatever the other words are.
    let is_hello = |bytes: &[u8]| bytes.len() == whole.len() && bytes[24..40] == whole[24..40];
    for (at, bytes) in nonsense(&whole).iter().enumerate().filter(|(_, bytes)| !is_hello(bytes)) {
        let socket = connect(&hub_address(&key));
        let pipe = quiet_pipe();
        let with = [pipe.0.as_fd()];
        send(&socket, bytes, if at % 2 == 0 { &with } else { &[] });
        kept.push((socket, pipe));
        kept.truncate(40);
    }
    let mut others = [1, 2].map(|rank| Start::new(&key, rank, 3).spawn());
    assert_eq!(hub.hear(), "met");
    others.iter_mut().for_each(|rank| assert_eq!(rank.hear(), "met"));
}

#[test]
fn a_rank_that_says_nonsense_after_its_hello_gives_its_place_up() {
    let key = new_key();
    let mut hub = Start::new(&key, 0, 3).spawn();
    let (life, _anchor) = quiet_pipe();
    let socket = connect(&hub_address(&key));
    send(&socket, &hello(&key, 1, 3, PIPE), &[life.as_fd()]);
    let mut answer = [0; 256];
    assert!(rustix::net::recv(&socket, &mut answer, RecvFlags::empty()).unwrap().0 > 0, "accepted");
    for bytes in nonsense(&hello(&key, 1, 3, PIPE)) {
        send(&socket, &bytes, &[]);
    }
    thread::sleep(Duration::from_millis(200));
    let mut others = [1, 2].map(|rank| Start::new(&key, rank, 3).spawn());
    assert_eq!(hub.hear(), "met");
    others.iter_mut().for_each(|rank| assert_eq!(rank.hear(), "met"));
}

#[test]
fn a_rank_whose_handle_is_of_no_process_is_no_rank() {
    let key = new_key();
    let mut hub = Start::new(&key, 0, 2).spawn();
    for life in [PIDFD, PIPE] {
        let socket = connect(&hub_address(&key));
        send(&socket, &hello(&key, 1, 2, life), &[regular_file().as_fd()]);
        let mut answer = [0; 256];
        let heard = rustix::net::recv(&socket, &mut answer, RecvFlags::empty());
        assert!(matches!(heard, Ok((0, _)) | Err(Errno::CONNRESET)), "{heard:?}: its place is free");
    }
    assert_eq!(Start::new(&key, 1, 2).spawn().hear(), "met");
    assert_eq!(hub.hear(), "met");
}

/// What a rank hands over as its life is believed. So a liar's death is a silence: whoever waits does so until its own deadline.
#[test]
fn a_handle_that_outlives_its_rank_hides_its_death() {
    let key = new_key();
    let mut hub = Start::new(&key, 0, 2).spawn();
    let socket = connect(&hub_address(&key));
    let (life, anchor) = quiet_pipe();
    send(&socket, &hello(&key, 1, 2, PIPE), &[life.as_fd()]);
    assert_eq!(hub.hear(), "met");
    drop(socket);
    assert_eq!(hub.ask("still-there 1 300"), "Alive", "the wait ends at its limit");
    drop(anchor);
    assert_eq!(hub.ask("await-gone 1"), "Gone(Unknown)");
}

#[test]
fn those_who_knock_and_stay_silent_keep_nobody_out() {
    let key = new_key();
    let mut hub = Start::new(&key, 0, 2).spawn();
    await_connections(&key, 0);
    // Until the hub takes no more and the queue at its door stays full.
    let (mut silent, mut turned_away) = (Vec::new(), 0);
    while silent.len() < 200 && turned_away < 300 {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        );
        let socket = socket.unwrap();
        match rustix::net::connect(&socket, &hub_address(&key)) {
            Ok(()) => {
                silent.push(socket);
                turned_away = 0;
            }
            Err(_) => {
                turned_away += 1;
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
    assert!(silent.len() > 64, "only {} connections are held", silent.len());
    assert_eq!(Start::new(&key, 1, 2).spawn().hear(), "met");
    assert_eq!(hub.hear(), "met");
}

/// A hub that is none: listens, hears a hello, and answers with these packets, each with a descriptor if it has one.
fn false_hub(key: &str, answers: Vec<(Vec<u8>, Option<OwnedFd>)>) -> thread::JoinHandle<OwnedFd> {
    let listener = socket();
    rustix::net::bind(&listener, &hub_address(key)).unwrap();
    rustix::net::listen(&listener, 16).unwrap();
    thread::spawn(move || {
        let socket = rustix::net::accept(&listener).unwrap();
        let heard = rustix::net::recv(&socket, &mut [0; 256], RecvFlags::empty()).unwrap().0;
        assert!(heard > 12, "a hello");
        for (bytes, descriptor) in &answers {
            let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
            send(&socket, bytes, &descriptors);
        }
        // Kept, so that it is silence that comes next, and not the end.
        socket
    })
}

#[test]
fn a_hub_that_answers_nonsense_is_an_error_that_names_it() {
    let (life, _anchor) = quiet_pipe();
    let memory = || rustix::fs::memfd_create("not sealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let roster = |rank| packet(ROSTER, &[1, rank, PIPE, 0]);
    let accepted = || (packet(ACCEPTED, &[PIPE]), Some(life.try_clone().unwrap()));
    type Answers = Vec<(Vec<u8>, Option<OwnedFd>)>;
    let cases: [(Answers, &str); 9] = [
        (vec![(b"GET / HTTP/1.1".to_vec(), None)], "version: expected protocol 2, as rank 0"),
        (vec![(packet(ASK, &[0, 0, 0, 0, 1]), None)], "got a packet of another kind"),
        (vec![accepted(), (packet(WELCOME, &[2])[..14].to_vec(), None)], "got a packet of another kind"),
        (vec![accepted(), (packet(WELCOME, &[3]), Some(memory()))], "got a packet of another kind"),
        (vec![accepted(), (packet(WELCOME, &[2]), None)], "got a welcome without memory"),
        (vec![accepted(), (packet(WELCOME, &[2]), Some(memory()))], "could not get"),
        (vec![accepted(), (packet(WELCOME, &[2]), Some(regular_file()))], "could not get"),
        (vec![accepted(), (roster(7), Some(regular_file()))], "got a list with rank 7"),
        (vec![accepted(), (roster(0), None)], "got a packet of another kind"),
    ];
    for (answers, said) in cases {
        let key = new_key();
        let hub = false_hub(&key, answers);
        let heard = Start::new(&key, 1, 2).spawn().hear();
        assert!(heard.starts_with("error rank 1: init") || heard.starts_with("error could not get"), "{heard}");
        assert!(heard.contains(said), "{heard}\nwithout: {said}");
        hub.join().unwrap();
    }
}

#[test]
fn a_hub_that_is_silent_is_named_at_the_deadline() {
    let (life, _anchor) = quiet_pipe();
    for answers in [Vec::new(), vec![(packet(ACCEPTED, &[PIPE]), Some(life.try_clone().unwrap()))]] {
        let key = new_key();
        let hub = false_hub(&key, answers);
        let heard = Start { limit_ms: 700, ..Start::new(&key, 1, 2) }.spawn().hear();
        assert!(heard.contains("waited for rank 0") && heard.contains(&key), "{heard}");
        hub.join().unwrap();
    }
}

/// The addresses at which a process listens.
fn listening(process: u32) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let targets: Vec<String> =
        files.filter_map(|file| Some(std::fs::read_link(file.path()).ok()?.to_string_lossy().into_owned())).collect();
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let own = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listens = fields.get(3) == Some(&"00010000");
        listens && fields.get(6).is_some_and(|inode| targets.contains(&format!("socket:[{inode}]")))
    };
    let name = |line: &str| Some(line.rsplit_once('@')?.1.as_bytes().to_vec());
    sockets.lines().filter(own).filter_map(name).collect()
}

fn served_at(rank: &Rank) -> Vec<u8> {
    let addresses = listening(rank.child.id());
    assert_eq!(addresses.len(), 1, "a rank serves group memory at one address: {addresses:?}");
    addresses[0].clone()
}

fn join_all(ranks: &mut [Rank], group: &str) {
    for rank in &mut *ranks {
        assert_eq!(rank.ask(&format!("ask {group} 0,1,2 0 s")), "asked");
    }
    for rank in ranks {
        assert_eq!(rank.ask(&format!("take {group}")), "joined s");
    }
}

#[test]
fn those_who_serve_memory_hear_nonsense_and_serve() {
    let mut ranks = world(3);
    let address = SocketAddrUnix::new_abstract_name(&served_at(&ranks[0])).unwrap();
    let whole = packet(ASK, &[1, 2, 3, 4, 1]);
    let mut kept = Vec::new();
    for bytes in nonsense(&whole) {
        let socket = connect(&address);
        send(&socket, &bytes, &[regular_file().as_fd()]);
        kept.push(socket);
    }
    // Who asks for what nobody has, or nothing, is kept waiting.
    for round in 0..20 {
        let socket = connect(&address);
        if round % 2 == 0 {
            send(&socket, &whole, &[]);
        }
        kept.push(socket);
    }
    join_all(&mut ranks, "g");
    drop(kept);
    join_all(&mut ranks, "h");
}

#[test]
fn silent_processes_at_the_launcher_keep_no_rank_out() {
    let launcher = Launcher::start(2);
    let address = SocketAddrUnix::new_abstract_name(launcher.address.as_bytes()).unwrap();
    let _silent: Vec<OwnedFd> = (0..200).map(|_| connect(&address)).collect();
    let key = new_key();
    let mut ranks = [0, 1].map(|rank| launcher.start_of(&key, rank, 2).spawn());
    for rank in &mut ranks {
        assert_eq!(rank.hear(), "met");
    }
    ranks[1].kill();
    assert_eq!(ranks[0].ask("await-gone 1"), "Gone(Signalled(9))");
}

#[test]
fn another_user_gets_no_memory_and_disturbs_nobody() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED another_user_gets_no_memory_and_disturbs_nobody: only root can become another user");
        return;
    }
    let mut ranks = world(3);
    let address = String::from_utf8(served_at(&ranks[0])).unwrap();
    for _ in 0..3 {
        let variables = vec![("SHM_TEST_KNOCK", address.clone())];
        assert_eq!(Start { variables, ..Start::new("", 1, 3) }.spawn().hear(), "", "not a word");
    }
    join_all(&mut ranks, "g");
}

#[test]
fn another_user_at_the_jobs_address_is_named() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED another_user_at_the_jobs_address_is_named: only root can become another user");
        return;
    }
    let key = new_key();
    let variables = vec![("SHM_TEST_SQUAT", hub_name(&key))];
    let mut squatter = Start { variables, ..Start::new(&key, 1, 2) }.spawn();
    assert_eq!(squatter.hear(), "listens");
    let heard = Start::new(&key, 1, 2).spawn().hear();
    assert!(heard.contains("user: expected user 0 as rank 0, got user 65534, who listens for job"), "{heard}");
    let heard = Start { limit_ms: 500, ..Start::new(&key, 0, 2) }.spawn().hear();
    assert!(heard.contains("which another process holds"), "{heard}");
    squatter.tell("end");
    assert!(squatter.wait().success());
}
