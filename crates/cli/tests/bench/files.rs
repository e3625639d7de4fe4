//! JSON and plots.

use std::fs;

use serde_json::Value;

use super::{bench, cores, path};

fn written(name: &str, option: &str) -> String {
    let path = path(name);
    let args = ["allreduce", "--sizes", "8,16K,64K", "--dtype", "float32,int32", option, path.to_str().unwrap()];
    let finished = bench(&args);
    assert_eq!(finished.code, Some(0), "{}", finished.err);
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(path).unwrap();
    text
}

#[test]
fn json_has_the_machine_the_method_and_every_figure() {
    let json: Value = serde_json::from_str(&written("all.json", "--json")).unwrap();
    assert_eq!((&json["schema"], &json["collective"], &json["ranks"]), (&1.into(), &"allreduce".into(), &2.into()));
    assert_eq!(json["foldcast"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["wrong"], 0);
    let date = json["date"].as_str().unwrap();
    assert!(date.len() == 20 && date.ends_with('Z') && date.contains('T'), "{date}");
    let machine = &json["machine"];
    assert!(machine["cores"].as_u64().unwrap() > 0 && machine["memory_bytes"].as_u64().unwrap() > 0, "{machine}");
    for name in ["processor", "kernel", "system"] {
        assert!(machine[name].is_string(), "{machine}");
    }
    let method = &json["method"];
    assert_eq!([&method["case_ms"], &method["samples"], &method["seed"]], [2, 3, 0]);
    assert_eq!(method["dirty"], false);
    let round_trip = &json["line_round_trip_ns"];
    for moment in ["before", "after"] {
        match round_trip.get(moment).unwrap() {
            Value::Null => assert_eq!(cores(), 1, "{round_trip}"),
            ns => assert!(ns.as_f64().unwrap() > 0.0, "{round_trip}"),
        }
    }
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 6);
    for row in results {
        let bytes = row["size_bytes"].as_u64().unwrap();
        assert_eq!(row["count"], bytes / 4);
        assert!(row["dtype"].is_string() && row["redop"] == "sum");
        assert_eq!(row["limit_us"].is_f64(), bytes >= 16384, "{row}");
        for mode in ["out_of_place", "in_place"] {
            check_measured(&row[mode], bytes);
        }
    }
}

#[allow(clippy::as_conversions, reason = "small sizes")]
fn check_measured(measured: &Value, bytes: u64) {
    let float = |name: &str| measured[name].as_f64().unwrap();
    assert!((float("algbw_gb_s") - bytes as f64 / float("time_us") / 1e3).abs() < 1e-9, "{measured}");
    assert!((float("busbw_gb_s") - float("algbw_gb_s")).abs() < 1e-9, "the factor of two ranks is 1");
    assert_eq!(measured["wrong"], 0);
    assert_eq!(measured["share_of_limit"].is_f64(), bytes >= 16384);
    assert!(measured["batches"].as_u64() == Some(3) && measured["calls_per_batch"].as_u64() >= Some(1), "{measured}");
    let names = ["min", "p10", "p25", "median", "p75", "p90", "max"];
    let quantiles = names.map(|name| measured["quantiles_us"][name].as_f64().unwrap());
    assert!(quantiles.is_sorted() && quantiles[0] > 0.0, "{measured}");
    assert!((quantiles[0]..=quantiles[6]).contains(&float("time_us")), "{measured}");
}

/// Two types by two modes, each with three sizes, and the limit of two sizes; in each of two charts.
const SPOTS: usize = 2 * (4 * 3 + 2);

fn check_picture(svg: &str) {
    let document = roxmltree::Document::parse(svg).unwrap();
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let spots: Vec<_> = document.descendants().filter(|node| node.attribute("class") == Some("spot")).collect();
    assert_eq!(spots.len(), SPOTS);
    let titles: Vec<_> = spots.iter().map(|spot| spot.first_element_child().unwrap().text().unwrap()).collect();
    for (name, next) in [("float32 sum out of place, 8 bytes: ", " us, "), ("copy limit, 64K bytes: ", " us, ")] {
        assert!(
            titles.iter().any(|title| title.starts_with(name) && title.contains(next) && title.ends_with(" GB/s")),
            "{titles:?}"
        );
    }
    for spot in spots {
        for (name, most) in [("cx", 960), ("cy", 1000)] {
            let place: i32 = spot.attribute(name).unwrap().parse().unwrap();
            assert!((0..=most).contains(&place), "{spot:?} lies outside");
        }
    }
    let texts: String = document.descendants().filter_map(|node| node.text()).collect();
    for text in ["time (us)", "bandwidth (GB/s)", "size (bytes)", "copy limit", "int32 sum in place", "16K"] {
        assert!(texts.contains(text), "no {text} in {texts}");
    }
}

#[test]
fn the_picture_is_well_formed_and_has_every_figure() {
    check_picture(&written("all.svg", "--plot"));
}

#[test]
fn the_page_has_the_picture_and_needs_no_network() {
    let html = written("all.html", "--plot");
    let (start, end) = (html.find("<svg").unwrap(), html.find("</svg>").unwrap());
    check_picture(&html[start..end + "</svg>".len()]);
    for tag in ["html", "head", "title", "style", "body", "svg", "pre", "script"] {
        let count = |text: &str| html.matches(text).count();
        let opened = count(&format!("<{tag}>")) + count(&format!("<{tag} "));
        assert_eq!((opened >= 1, opened), (true, count(&format!("</{tag}>"))), "{tag}");
    }
    let names = html.replace("http://www.w3.org/2000/svg", "");
    for reference in ["http:", "https:", "src=", "href=", "url(", "@import", "fetch("] {
        assert!(!names.contains(reference), "{reference}");
    }
    assert!(html.contains("#wrong") && html.contains("every element was right"));
}
