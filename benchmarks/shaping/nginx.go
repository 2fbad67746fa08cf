package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func nginxVersion() (string, error) {
	out, err := exec.Command("nginx", "-v").CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("no nginx on PATH to compare with; Debian has it in the package nginx-light")
	}
	_, version, _ := strings.Cut(strings.TrimSpace(string(out)), ": ")
	return version, err
}

const nginxConf = `daemon off;
pid %[1]s/pid;
error_log %[1]s/error.log crit;
worker_processes 1;
events { worker_connections 16384; }
http {
	access_log off;
	client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
	limit_req_zone $server_name zone=all:1m rate=%[2]dr/s;
	limit_req_status 429;
	upstream backend { server %[3]s; keepalive 64; }
	server {
		listen %[4]s;
		server_name all;
		location / {
			limit_req zone=all burst=%[5]d %[6]s;
			proxy_pass http://backend;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
		}
	}
}
`

// nginx is a process of its own, with a directory of its own, in front of the backend.
type nginx struct {
	addr, dir string
	process   *exec.Cmd
}

func nginxWith(rate, burst int, more string) func(*backend, string) (proxy, error) {
	return func(b *backend, _ string) (proxy, error) {
		dir, err := os.MkdirTemp("", "nginx")
		if err != nil {
			return nil, err
		}
		addr, err := freeAddr()
		if err != nil {
			return nil, err
		}
		conf := fmt.Sprintf(nginxConf, dir, rate, strings.TrimPrefix(b.url, "http://"), addr, burst, more)
		file := filepath.Join(dir, "nginx.conf")
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			return nil, err
		}
		n := &nginx{addr, dir, exec.Command("nginx", "-p", dir, "-c", file, "-e", filepath.Join(dir, "error.log"))}
		n.process.Stderr = os.Stderr
		if err := n.process.Start(); err != nil {
			return nil, err
		}
		return n, listens(addr)
	}
}

func (n *nginx) url() string { return "http://" + n.addr }

// pids are the master's and the workers'.
func (n *nginx) pids() []int {
	master := n.process.Process.Pid
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", master))
	pids := []int{master}
	for child := range strings.FieldsSeq(string(children)) {
		if pid, err := strconv.Atoi(child); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (n *nginx) stop() {
	_ = n.process.Process.Signal(syscall.SIGTERM)
	_ = n.process.Wait()
	_ = os.RemoveAll(n.dir)
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func listens(addr string) error {
	for range 500 {
		if conn, err := net.Dial("tcp", addr); err == nil {
			return conn.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("nothing listens on %s", addr)
}
